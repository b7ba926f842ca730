package backup

import (
	"testing"

	"github.com/countd/countd/internal/must"
)

// A first backup of bytes without a pattern, and one that finds all of its chunks there.
func BenchmarkBackup(b *testing.B) {
	c := newMemCluster(1)
	c.states[1] = noise(1, 128<<20)
	for _, again := range []bool{false, true} {
		name := "first"
		if again {
			name = "again"
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(c.states[1])))
			target := Directory(b.TempDir())
			for b.Loop() {
				b.StopTimer()
				if !again {
					target = Directory(b.TempDir())
				}
				a, err := CreateArchive(b.Context(), target, c.id, nil)
				must.Do(b, err)
				if again {
					_, err := a.Backup(b.Context(), c, Report{})
					must.Do(b, err)
				}
				b.StartTimer()
				_, err = a.Backup(b.Context(), c, Report{})
				must.Do(b, err)
			}
		})
	}
}
