package main

import (
	"math"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "512MiB": 512 << 20, "4g": 4 << 30, "1048576": 1 << 20} {
		var n uint64
		if err := (sizeFlag{&n}).Set(text); err != nil || n != want {
			t.Errorf("%s: %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{"", "x", "-1", "4 apples", "80%"} {
		var n uint64
		if err := (sizeFlag{&n}).Set(text); err == nil {
			t.Errorf("%q was taken for %d", text, n)
		}
	}
}

func TestMemoryShares(t *testing.T) {
	share := memoryShare{percent: 80}
	f := &share
	machine := memlimit.Limit(4 << 30)
	unknown := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	const refused = math.MaxUint64
	for _, c := range []struct {
		text    string
		machine memlimit.Provider
		want    uint64
	}{
		{"50%", machine, 4 << 30 / 100 * 50}, {"100%", machine, 4 << 30 / 100 * 100}, {"50%", unknown, refused},
		{"2GiB", machine, 2 << 30}, {"4GiB", machine, 4 << 30}, {"5GiB", machine, refused}, {"5GiB", unknown, 5 << 30},
		{"0", machine, 0}, {"0", unknown, 0},
	} {
		if err := f.Set(c.text); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		if got, err := share.limit(c.machine); (err != nil) != (c.want == refused) || err == nil && got != c.want {
			t.Errorf("%s: %d, %v, want %d", c.text, got, err, c.want)
		}
	}
	for _, text := range []string{"0%", "101%", "-1%", "%", "most"} {
		if err := f.Set(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// TestMachineMemory: a control group's limit counts only if it is below the machine's memory.
func TestMachineMemory(t *testing.T) {
	none := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	for _, c := range []struct {
		system, group memlimit.Provider
		want          uint64
	}{
		{memlimit.Limit(8), memlimit.Limit(3), 3}, {memlimit.Limit(8), memlimit.Limit(9), 8},
		{memlimit.Limit(8), none, 8}, {none, memlimit.Limit(3), 3}, {none, none, 0},
	} {
		if got, err := leastOf(c.system, c.group); got != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%d, %v, want %d", got, err, c.want)
		}
	}
	if n, err := machineMemory(); err != nil || n < 64<<20 {
		t.Errorf("this machine has %d bytes: %v", n, err)
	}
}
