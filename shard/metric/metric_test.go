package metric

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A renamed gauge has its value and labels under both names, and one of them says which is
// the new one.
func TestRenamedGauge(t *testing.T) {
	registry := prometheus.NewRegistry()
	gauges := RenamedGauge("countd_new", "countd_old", "What it is.", prometheus.Labels{"kind": "a"}, func() float64 { return 7 })
	if err := Register(registry, gauges...); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	help := map[string]string{}
	for _, f := range families {
		m := f.GetMetric()[0]
		if m.GetGauge().GetValue() != 7 || m.GetLabel()[0].GetValue() != "a" {
			t.Errorf("%s is %v", f.GetName(), m)
		}
		help[f.GetName()] = f.GetHelp()
	}
	if len(help) != 2 || help["countd_new"] != "What it is." || help["countd_old"] != "The old name of countd_new." {
		t.Errorf("the helps are %q", help)
	}
}
