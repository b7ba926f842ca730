package raftfsm

import "testing"

// mixID must not change, because rows on disk are stored where it says.
func TestMixIDIsFixed(t *testing.T) {
	for id, want := range map[uint64]uint64{
		0: 0, 1: 0xb456bcfc34c2cb2c, 4467107636950632: 0x4b5be8b5e16aee56, 1<<64 - 1: 0x64b5720b4b825f21,
	} {
		if got := mixID(id); got != want {
			t.Errorf("id %d is mixed to %#x, want %#x", id, got, want)
		}
	}
}
