package main

import (
	"net/netip"
	"sort"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
)

// world reads Services and their endpoints from the informers' caches.
type world struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// target is one address behind a name. host is the label below the Service's name that stands for this
// address alone (headless Services only).
type target struct {
	host  string
	addr  netip.Addr
	ports []port
}

type port struct {
	name, protocol string // protocol in lower case
	number         int32
}

func headless(service *core.Service) bool { return service.Spec.ClusterIP == core.ClusterIPNone }

// targets returns what the Service's name stands for: its own addresses, or its ready endpoints when it is
// headless. The second result says whether the Service exists.
func (w *world) targets(namespace, name string) ([]target, bool) {
	service, err := w.services.Services(namespace).Get(name)
	if err != nil {
		return nil, false
	}
	if headless(service) {
		return w.endpoints(namespace, name), true
	}
	var ports []port
	for _, p := range service.Spec.Ports {
		ports = append(ports, port{name: p.Name, protocol: strings.ToLower(string(p.Protocol)), number: p.Port})
	}
	var found []target
	for _, ip := range service.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(ip); err == nil {
			found = append(found, target{addr: addr, ports: ports})
		}
	}
	return found, true
}

// endpoints returns the ready endpoints of a Service, ordered by address. The EndpointSlice controller
// already counts unready pods as ready where the Service publishes them (publishNotReadyAddresses).
func (w *world) endpoints(namespace, name string) []target {
	owned := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: name})
	slices, err := w.slices.EndpointSlices(namespace).List(owned)
	if err != nil {
		return nil
	}
	var found []target
	for _, slice := range slices {
		ports := slicePorts(slice)
		for _, endpoint := range slice.Endpoints {
			if ready := endpoint.Conditions.Ready; ready != nil && !*ready {
				continue
			}
			for _, ip := range endpoint.Addresses {
				if addr, err := netip.ParseAddr(ip); err == nil {
					found = append(found, target{host: hostOf(endpoint, ip), addr: addr, ports: ports})
				}
			}
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].addr.Less(found[j].addr) })
	return found
}

// hostOf is the pod's own name, or its address with dashes when it has none.
func hostOf(endpoint discovery.Endpoint, ip string) string {
	if endpoint.Hostname != nil && *endpoint.Hostname != "" {
		return *endpoint.Hostname
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip)
}

func slicePorts(slice *discovery.EndpointSlice) []port {
	var ports []port
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue
		}
		entry := port{number: *p.Port, protocol: "tcp"}
		if p.Name != nil {
			entry.name = *p.Name
		}
		if p.Protocol != nil {
			entry.protocol = strings.ToLower(string(*p.Protocol))
		}
		ports = append(ports, entry)
	}
	return ports
}

// nameOf finds the per-pod name of an address, as namespace, Service and host.
func (w *world) nameOf(ip string) (namespace, service, host string, found bool) {
	slices, err := w.slices.List(labels.Everything())
	if err != nil {
		return "", "", "", false
	}
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Hostname == nil || len(endpoint.Addresses) == 0 || endpoint.Addresses[0] != ip {
				continue
			}
			return slice.Namespace, slice.Labels[discovery.LabelServiceName], *endpoint.Hostname, true
		}
	}
	return "", "", "", false
}
