package main

import "testing"

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
	f := shareFlag{&share}
	machine, err := memoryShare{percent: 100}.limit()
	if err != nil || machine < 64<<20 {
		t.Fatalf("machine of %d bytes: %v", machine, err)
	}
	for text, want := range map[string]uint64{"50%": machine / 100 * 50, "100%": machine / 100 * 100, "2GiB": 2 << 30, "0": 0} {
		if err := f.Set(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got, err := share.limit(); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"0%", "101%", "-1%", "%", "most"} {
		if err := f.Set(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
