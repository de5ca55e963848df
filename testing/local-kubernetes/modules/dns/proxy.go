package main

import (
	"fmt"
	"log"
	"os/exec"
	"sort"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// proxy keeps one nftables table in which every ClusterIP goes to a random ready endpoint. It knows neither
// session affinity nor NodePorts.
type proxy struct {
	world *world
	table string
	pods  string
}

// settle gathers the changes of one burst (a Service and its slices) into one ruleset.
const settle = 50 * time.Millisecond

// retry is the pause after a ruleset that nft refused.
const retry = time.Second

func (p *proxy) run(changed <-chan struct{}) {
	applied := ""
	for range changed {
		time.Sleep(settle)
		for {
			rules := p.ruleset()
			if rules == applied {
				break
			}
			command := exec.Command("nft", "-f", "-")
			command.Stdin = strings.NewReader(rules)
			output, err := command.CombinedOutput()
			if err == nil {
				applied = rules
				break
			}
			log.Printf("nft: %v: %s\n%s", err, output, rules)
			time.Sleep(retry)
		}
	}
}

// ruleset replaces the whole table in one transaction: declared (so that the delete never fails), deleted,
// declared anew.
func (p *proxy) ruleset() string {
	var rules strings.Builder
	services, err := p.world.services.List(labels.Everything())
	if err != nil {
		log.Printf("services: %v", err)
	}
	sort.Slice(services, func(i, j int) bool {
		a, b := services[i], services[j]
		return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
	})
	for _, service := range services {
		if !headless(service) && service.Spec.ClusterIP != "" && service.Spec.Type != core.ServiceTypeExternalName {
			p.service(&rules, service)
		}
	}
	// From pod to pod the answer would go straight over the bridge, past the address translation, and be
	// refused by the one who asked: masquerading makes it come back this way.
	return fmt.Sprintf(`table ip %[1]s
delete table ip %[1]s
table ip %[1]s {
  chain services {
%[2]s  }
  chain from_pods { type nat hook prerouting priority dstnat; jump services; }
  chain from_host { type nat hook output priority -100; jump services; }
  chain back { type nat hook postrouting priority srcnat; ct status dnat ip saddr %[3]s ip daddr %[3]s masquerade; }
}
`, p.table, rules.String(), p.pods)
}

func (p *proxy) service(rules *strings.Builder, service *core.Service) {
	endpoints := p.world.endpoints(service.Namespace, service.Name)
	for _, servicePort := range service.Spec.Ports {
		protocol := strings.ToLower(string(servicePort.Protocol))
		var to []string
		for _, endpoint := range endpoints {
			for _, port := range endpoint.ports {
				if port.name == servicePort.Name && port.protocol == protocol && endpoint.addr.Is4() {
					to = append(to, fmt.Sprintf("%d : %s . %d", len(to), endpoint.addr, port.number))
				}
			}
		}
		if len(to) == 0 {
			continue // left untranslated, it is refused by the rule for the whole service range
		}
		fmt.Fprintf(rules, "    ip daddr %s %s dport %d dnat ip to numgen random mod %d map { %s }\n",
			service.Spec.ClusterIP, protocol, servicePort.Port, len(to), strings.Join(to, ", "))
	}
}
