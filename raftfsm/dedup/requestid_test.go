package dedup

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

func TestBornAtOfBareDigits(t *testing.T) {
	for key, want := range map[string]int64{
		"01890a5dac96774bbcceb302099a8057":     0x01890a5dac96,
		"01890A5DAC96774BBCCEB302099A8057":     0x01890a5dac96,
		"01890a5dac96474bbcceb302099a8057":     0, // version 4
		"01890a5dac96774b7cceb302099a8057":     0, // of another variant
		"01890a5d-ac96-774b-7cce-b302099a8057": 0,
		"01890a5dac96774bbcceb302099a805":      0,
		"01890a5dac96774bbcceb302099a805g":     0,
		"017fffffffff774bbcceb302099a8057":     0, // before 2022
		"020000000000774bbcceb302099a8057":     0,
		"a1890a5dac96774bbcceb302099a8057":     0, // some hash
		strings.Repeat("k", 32):                0,
	} {
		if got := bornAt([]byte(key)); got != want {
			t.Errorf("%s: %x, want %x", key, got, want)
		}
	}
}

func TestBorn(t *testing.T) {
	id := ByKey([]byte("01890a5dac96774bbcceb302099a8057"))
	if at, ok := id.Born(); !ok || !at.Equal(time.UnixMilli(0x01890a5dac96)) {
		t.Errorf("born %v %v", at, ok)
	}
	id = ByKey([]byte("k"))
	if at, ok := id.Born(); ok {
		t.Errorf("born %v", at)
	}
}

// Number 0 has no special meaning, whether it is the first number of its producer or a later one.
func TestNumberZero(t *testing.T) {
	h := newHistory(t)
	h.want(0, seq("first", 0), Applied, 1)
	h.want(0, seq("first", 0), Duplicate, 1)
	h.want(0, seq("first", 1), Applied, 2)
	h.want(0, seq("first", 0), Duplicate, 2)
	h.want(0, seq("behind", 63), Applied, 3)
	h.reopen(t)
	h.want(0, seq("behind", 0), Applied, 4)
	h.want(0, seq("behind", 0), Duplicate, 4)
	h.want(0, seq("first", 63), Applied, 5)
	h.want(0, seq("first", 0), Duplicate, 5)
	h.want(0, seq("first", 64), Applied, 6)
	h.want(0, seq("first", 0), Expired, 6)
}

// A UUID with and without hyphens contains the same time. Other keys contain none.
func FuzzBornAt(f *testing.F) {
	f.Add([]byte("01890a5d-ac96-774b-bcce-b302099a8057"))
	f.Add([]byte("01890a5dac96774bbcceb302099a8057"))
	f.Add([]byte("00000000-0000-774b-bcce-b302099a8057"))
	f.Fuzz(func(t *testing.T, key []byte) {
		ms := bornAt(key)
		if ms == 0 {
			return
		}
		bare := strings.ReplaceAll(string(key), "-", "")
		raw, err := hex.DecodeString(bare)
		if err != nil || len(raw) != 16 || raw[6]>>4 != 7 || max(1, int64(binary.BigEndian.Uint64(raw)>>16)) != ms {
			t.Fatalf("%q was born at %d", key, ms)
		}
		if other := bornAt([]byte(bare)); other != ms && ms >= bareBornMin && ms < bareBornMax {
			t.Fatalf("%q was born at %d, and without hyphens at %d", key, ms, other)
		}
	})
}

func TestBornAt(t *testing.T) {
	for key, want := range map[string]int64{
		"01890a5d-ac96-774b-bcce-b302099a8057": 0x01890a5dac96,
		"01890A5D-AC96-774B-BCCE-B302099A8057": 0x01890a5dac96,
		"00000000-0000-774b-bcce-b302099a8057": 1, // the time 0 counts as 1, because 0 means no time
		"00000000-0001-774b-bcce-b302099a8057": 1,
		"01890a5d-ac96-474b-bcce-b302099a8057": 0, // version 4
		"01890a5d-ac96-774b-bcce-b302099a805":  0,
		"01890a5d-ac96-774b-bcce-b302099a805g": 0,
		"01890a5dxac96-774b-bcce-b302099a8057": 0,
		"k":                                    0,
	} {
		if got := bornAt([]byte(key)); got != want {
			t.Errorf("%s: %x, want %x", key, got, want)
		}
	}
}
