package main

import (
	"log"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// resolver answers the names of the Kubernetes DNS specification (version 1.1): A and AAAA of Services and
// of pods below a headless Service, SRV of named ports, PTR of pods with a host name.
type resolver struct {
	world *world
	zone  string // with dots at both ends: ".cluster.local."
	ttl   uint32
}

func newResolver(w *world, zone string, ttl uint32) *resolver {
	return &resolver{world: w, zone: "." + dns.Fqdn(zone), ttl: ttl}
}

// answer is what a name has: it may exist without a record of the type that was asked for.
type answer struct {
	exists  bool
	records []dns.RR
	extra   []dns.RR
}

func (r *resolver) ServeDNS(w dns.ResponseWriter, request *dns.Msg) {
	reply := new(dns.Msg)
	reply.SetReply(request)
	reply.Authoritative = true
	if len(request.Question) != 1 {
		reply.Rcode = dns.RcodeFormatError
	} else {
		found := r.lookup(request.Question[0])
		reply.Answer, reply.Extra = found.records, found.extra
		if !found.exists {
			reply.Rcode = dns.RcodeNameError
		}
		if len(reply.Answer) == 0 {
			reply.Ns = []dns.RR{r.authority()}
		}
	}
	if w.RemoteAddr().Network() == "udp" {
		size := dns.MinMsgSize
		if options := request.IsEdns0(); options != nil {
			size = max(size, int(options.UDPSize()))
		}
		reply.Truncate(size)
	}
	if err := w.WriteMsg(reply); err != nil {
		log.Printf("reply to %s: %v", w.RemoteAddr(), err)
	}
}

func (r *resolver) lookup(question dns.Question) answer {
	name := strings.ToLower(question.Name)
	if ip, isReverse := strings.CutSuffix(name, ".in-addr.arpa."); isReverse {
		return r.reverse(question, ip)
	}
	rest, ours := strings.CutSuffix(name, ".svc"+r.zone)
	if !ours {
		return answer{}
	}
	labels := strings.Split(rest, ".")
	switch len(labels) {
	case 1: // a namespace: the name exists, it has no address
		return answer{exists: true}
	case 2:
		return r.service(question, labels[1], labels[0])
	case 3:
		return r.pod(question, labels[2], labels[1], labels[0])
	case 4:
		return r.portOf(question, labels)
	}
	return answer{}
}

func (r *resolver) service(question dns.Question, namespace, name string) answer {
	targets, exists := r.world.targets(namespace, name)
	found := answer{exists: exists}
	for _, t := range targets {
		found.add(r.address(question.Name, question.Qtype, t.addr))
	}
	return found
}

func (r *resolver) pod(question dns.Question, namespace, service, host string) answer {
	targets, _ := r.world.targets(namespace, service)
	var found answer
	for _, t := range targets {
		if t.host == host {
			found.exists = true
			found.add(r.address(question.Name, question.Qtype, t.addr))
		}
	}
	return found
}

// portOf answers _port._protocol.service.namespace.
func (r *resolver) portOf(question dns.Question, labels []string) answer {
	name, okName := strings.CutPrefix(labels[0], "_")
	protocol, okProtocol := strings.CutPrefix(labels[1], "_")
	if !okName || !okProtocol {
		return answer{}
	}
	targets, _ := r.world.targets(labels[3], labels[2])
	var found answer
	for _, t := range targets {
		for _, p := range t.ports {
			if p.name != name || p.protocol != protocol {
				continue
			}
			found.exists = true
			if question.Qtype != dns.TypeSRV {
				continue
			}
			host := labels[2] + "." + labels[3] + ".svc" + r.zone
			if t.host != "" {
				host = t.host + "." + host
			}
			found.records = append(found.records, &dns.SRV{
				Hdr: r.header(question.Name, dns.TypeSRV), Weight: 1, Port: uint16(p.number), Target: host})
			if record := r.address(host, dns.TypeA, t.addr); record != nil {
				found.extra = append(found.extra, record)
			}
		}
	}
	return found
}

func (r *resolver) reverse(question dns.Question, reversed string) answer {
	octets := strings.Split(reversed, ".")
	if len(octets) != 4 {
		return answer{}
	}
	ip := octets[3] + "." + octets[2] + "." + octets[1] + "." + octets[0]
	namespace, service, host, exists := r.world.nameOf(ip)
	found := answer{exists: exists}
	if exists && question.Qtype == dns.TypePTR {
		found.records = []dns.RR{&dns.PTR{
			Hdr: r.header(question.Name, dns.TypePTR), Ptr: host + "." + service + "." + namespace + ".svc" + r.zone}}
	}
	return found
}

func (a *answer) add(record dns.RR) {
	if record != nil {
		a.records = append(a.records, record)
	}
}

func (r *resolver) header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: r.ttl}
}

// address returns the record of that type for the address, or nil when the address is of the other family.
func (r *resolver) address(name string, kind uint16, addr netip.Addr) dns.RR {
	switch {
	case kind == dns.TypeA && addr.Is4():
		return &dns.A{Hdr: r.header(name, kind), A: addr.AsSlice()}
	case kind == dns.TypeAAAA && addr.Is6():
		return &dns.AAAA{Hdr: r.header(name, kind), AAAA: addr.AsSlice()}
	}
	return nil
}

// authority goes with every empty answer: its last field is how long a resolver may remember it.
func (r *resolver) authority() dns.RR {
	zone := strings.TrimPrefix(r.zone, ".")
	return &dns.SOA{Hdr: r.header(zone, dns.TypeSOA), Ns: "ns.dns." + zone, Mbox: "hostmaster." + zone,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: r.ttl}
}
