package tiering

import (
	"errors"
	"time"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard/errs"
)

// suspectEvery is the interval at which RunSuspects checks for suspected damage.
const suspectEvery = time.Second

// RunSuspects scrubs a replica's sets soon after a read found damage that may affect them. It also
// removes damaged files. Open starts it; Close stops it and waits.
func (s *Scrub) RunSuspects() {
	tick := time.NewTicker(suspectEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.stopping:
			return
		}
		for _, l := range s.shards() {
			sets := l.FSM.Members()
			if sets == nil || !sets.TakeSuspicion() || l.Damage.Found() {
				continue
			}
			if s.sets(l) != nil {
				return
			}
		}
		if store := s.stored(); store != nil {
			store.Discard()
		}
	}
}

// sets scrubs the sets of a replica and records damage, which the node then repairs. It reads as
// fast as it can, because the store cannot delete files until the scrub ends. It returns
// ErrDraining once the node is stopping.
func (s *Scrub) sets(l *Shard) error {
	sets := l.FSM.Members()
	if sets == nil {
		return nil
	}
	err := sets.Scrub(func(bytes int) error {
		s.tell(func(s *ColdScrub) {
			s.Bytes += uint64(bytes)
			s.PassBytes += uint64(bytes)
		})
		select {
		case <-time.After(time.Duration(bytes) * time.Second / scrubBytesPerSecondMax):
			return nil
		case <-s.stopping:
			return errs.ErrDraining
		}
	})
	switch {
	case errors.Is(err, members.ErrDamaged):
		if !l.Damage.closing.Load() {
			s.tell(func(s *ColdScrub) { s.Damaged++ })
			l.Damage.Note(err)
		}
		return nil
	case errors.Is(err, scarce.ErrClosed):
		return errs.ErrDraining
	}
	return err
}
