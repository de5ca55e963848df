// The cluster DNS and the service proxy of the local Kubernetes, in one process: both follow Services and
// EndpointSlices and nothing else. Names outside the cluster are answered NXDOMAIN; nothing is forwarded.
package main

import (
	"flag"
	"log"

	"github.com/miekg/dns"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	listen := flag.String("listen", "127.0.0.1:53", "address of the DNS server, UDP and TCP")
	zone := flag.String("zone", "cluster.local", "domain of the cluster")
	ttl := flag.Uint("ttl", 1, "time to live of every answer, in seconds: short, since tests look for changes")
	table := flag.String("nft-table", "", "nftables table (family ip) that the proxy owns; empty: no proxy")
	pods := flag.String("pod-cidr", "", "addresses of the pods; the proxy masquerades what goes from pod to pod")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatalf("kubeconfig: %v", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatalf("client: %v", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	slices := factory.Discovery().V1().EndpointSlices()
	world := &world{services: services.Lister(), slices: slices.Lister()}

	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default: // a wake-up is already waiting, and it will see this change too
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { wake() },
		UpdateFunc: func(any, any) { wake() },
		DeleteFunc: func(any) { wake() },
	}
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), slices.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			log.Fatalf("watch: %v", err)
		}
	}
	forever := make(chan struct{})
	factory.Start(forever)
	cache.WaitForCacheSync(forever, services.Informer().HasSynced, slices.Informer().HasSynced)

	if *table != "" {
		go (&proxy{world: world, table: *table, pods: *pods}).run(changed)
	}
	resolver := newResolver(world, *zone, uint32(*ttl))
	for _, network := range []string{"udp", "tcp"} {
		go func() {
			server := &dns.Server{Addr: *listen, Net: network, Handler: resolver}
			log.Fatalf("%s: %v", network, server.ListenAndServe())
		}()
	}
	log.Printf("serving %s on %s", *zone, *listen)
	<-forever
}
