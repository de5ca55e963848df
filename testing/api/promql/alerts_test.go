package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/promqltest"
	"go.yaml.in/yaml/v2"
)

// Each alert: series that make it fire at minute 20, and series that do not.
var cases = map[string]struct{ fires, quiet string }{
	"ValkeyClusterNotReady": {
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="Ready"} 0x30`,
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="Ready"} 1x30
  valkey_operator_cluster_condition{namespace="a",cluster="b",name="Degraded"} 0x30`,
	},
	"ValkeyClusterDegraded": {
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="Degraded"} 1x30`,
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="Ready"} 1x30`,
	},
	"ValkeyClusterSlotsUncovered": {
		`valkey_operator_cluster_slots_assigned{namespace="a",cluster="b"} 16383x30
  valkey_operator_cluster_state{namespace="a",cluster="b",name="Active"} 1x30`,
		`valkey_operator_cluster_slots_assigned{namespace="a",cluster="b"} 16384x30
  valkey_operator_cluster_state{namespace="a",cluster="b",name="Active"} 1x30
  valkey_operator_cluster_slots_assigned{namespace="a",cluster="new"} 0x30
  valkey_operator_cluster_state{namespace="a",cluster="new",name="Active"} 0x30`,
	},
	"ValkeyClusterInvalid": {
		`valkey_operator_cluster_state{namespace="a",cluster="b",name="Invalid"} 1x30`,
		`valkey_operator_cluster_state{namespace="a",cluster="b",name="Invalid"} 0x30`,
	},
	"ValkeyClusterReferencesUnresolved": {
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="ReferencesResolved"} 0x30`,
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="ReferencesResolved"} 1x30`,
	},
	"ValkeyClusterCertificateExpiring": {
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="CertificateExpiringSoon"} 1x30`,
		`valkey_operator_cluster_condition{namespace="a",cluster="b",name="CertificateExpiringSoon"} 0x30`,
	},
	"ValkeyOperatorDown": {
		`valkey_operator_build_info{binary="cluster-ctl"} 1x30
  valkey_operator_build_info{binary="reconcile-loops"} 1x30`,
		`valkey_operator_build_info{binary="cluster-ctl"} 1x30
  valkey_operator_build_info{binary="node-ctl"} 1x30
  valkey_operator_build_info{binary="reconcile-loops"} 1x30`,
	},
	"ValkeyOperatorReconcileErrors": {
		`controller_runtime_reconcile_total{job="valkey-operator-metrics",controller="cluster",result="error"} 0+1x30`,
		`controller_runtime_reconcile_total{job="valkey-operator-metrics",controller="cluster",result="error"} 7x30
  controller_runtime_reconcile_total{job="valkey-operator-metrics",controller="cluster",result="ok"} 0+1x30
  controller_runtime_reconcile_total{job="another",controller="cluster",result="error"} 0+1x30`,
	},
	"ValkeyAclRefused": {
		// The first refusal ever, at minute 15: the series begins with it.
		`valkey_operator_acl_reloads_total{result="refused"} _x14 6x15`,
		`valkey_operator_acl_reloads_total{result="refused"} 6x30
  valkey_operator_acl_reloads_total{result="current"} 0+1x30`,
	},
	"ValkeyReloadsFailing": {
		`valkey_operator_tls_reloads_total{result="timeout"} 0+1x30`,
		`valkey_operator_acl_reloads_total{result="current"} 0+1x30
  valkey_operator_acl_reloads_total{result="stale"} 0+1x30
  valkey_operator_acl_reloads_total{result="timeout"} 3x30`,
	},
}

func TestEveryAlertFiresWhenItShouldAndOnlyThen(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/overlays/metrics/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	rules := file.Spec.Groups[0].Rules
	if len(rules) != len(cases) {
		t.Fatalf("%d rules, %d cases", len(rules), len(cases))
	}
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	for _, rule := range rules {
		series, found := cases[rule.Alert]
		if !found {
			t.Errorf("%s has no case", rule.Alert)
			continue
		}
		for name, run := range map[string]struct{ series, count string }{
			"fires": {series.fires, "  {} 1\n"},
			"quiet": {series.quiet, ""},
		} {
			t.Run(rule.Alert+"/"+name, func(t *testing.T) {
				expression := strings.ReplaceAll(rule.Expr, "\n", " ")
				script := fmt.Sprintf("load 1m\n  %s\n\neval instant at 20m count(%s)\n%s", run.series, expression, run.count)
				promqltest.RunTest(t, script, engine)
			})
		}
	}
}
