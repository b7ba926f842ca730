package tiering

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/shard/errs"
)

const (
	// scrubBytesPerSecondMax bounds what reading all cold rows takes from the disk,
	// which has others to serve: one part in some twenty of what a small one reads. More
	// than 4.8 TB take longer than a week at that.
	scrubBytesPerSecondMax = 8 << 20
	// scrubPieceBytes is read between two pauses: some 15 blocks.
	scrubPieceBytes = 64 << 10
	// scrubRestMin is the least pause between two passes, where there is next to
	// nothing to read.
	scrubRestMin = time.Second
)

// ColdScrub is how far a node is with reading all that it has on disk: cold rows, and sets of
// members. A start begins anew, so what it tells is since then.
type ColdScrub struct {
	EverySeconds float64   `json:"every_seconds"` // 0 for never
	Blocks       uint64    `json:"blocks"`        // of cold rows
	Bytes        uint64    `json:"bytes"`
	PassBytes    uint64    `json:"pass_bytes"` // of the pass that goes on, or of the last one
	PassOf       uint64    `json:"pass_of"`    // about as many as that is to read
	Passes       uint64    `json:"passes"`     // that have ended
	LastPass     time.Time `json:"last_pass,omitzero"`
	Damaged      uint64    `json:"damaged_generations"` // that passes found, each time; and shards with damaged sets
}

// Scrub reads all cold rows and sets once in a while, so that a disk that loses some is found
// out while other replicas have them. Its bytes are spread over the time that a pass may
// take.
type Scrub struct {
	shards   func() []*Shard
	stored   func() *members.Store // nil before OpenSets
	every    time.Duration         // 0 for never
	logger   *slog.Logger
	stopping <-chan struct{}

	mu struct {
		sync.Mutex
		ColdScrub
	}
}

func (s *Scrub) Report() ColdScrub {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.ColdScrub
}

// tell changes what is reported.
func (s *Scrub) tell(change func(*ColdScrub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.mu.ColdScrub)
}

// Run makes passes. Open starts it, Close stops and waits for it.
func (s *Scrub) Run() {
	every := s.every
	if every == 0 {
		return
	}
	s.tell(func(s *ColdScrub) { s.EverySeconds = every.Seconds() })
	for {
		began := time.Now()
		if s.Pass(s.pause(began, every)) != nil {
			return
		}
		select {
		case <-time.After(max(scrubRestMin, every-time.Since(began))):
		case <-s.stopping:
			return
		}
	}
}

// pause returns what to call after each block of a pass: it waits as long as
// spreads the pass over its time, and returns an error once the node is stopping.
func (s *Scrub) pause(began time.Time, every time.Duration) func(bytes int) error {
	piece := 0
	return func(bytes int) error {
		if piece += bytes; piece < scrubPieceBytes {
			return nil
		}
		pause := time.Duration(piece) * time.Second / scrubBytesPerSecondMax
		piece = 0
		if now := s.Report(); now.PassOf > 0 {
			due := time.Duration(float64(every) * min(1, float64(now.PassBytes)/float64(now.PassOf)))
			pause = max(pause, due-time.Since(began))
		}
		select {
		case <-time.After(pause):
			return nil
		case <-s.stopping:
			return errs.ErrDraining
		}
	}
}

// Pass reads all cold rows and sets once, shard by shard in any order: where the process
// never lives for a whole pass, each has its turn all the same. It returns the error of
// pause.
func (s *Scrub) Pass(pause func(bytes int) error) error {
	all := s.shards()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	of := uint64(0)
	for _, l := range all {
		of += l.FSM.State().ColdBytes
		if sets := l.FSM.Members(); sets != nil {
			of += sets.DiskBytes()
		}
	}
	s.tell(func(s *ColdScrub) { s.PassBytes, s.PassOf = 0, of })
	for _, l := range all {
		if err := s.shard(l, pause); err != nil {
			return err
		}
		if err := s.sets(l); err != nil {
			return err
		}
		if err := pause(scrubPieceBytes); err != nil { // for the sets
			return err
		}
	}
	s.tell(func(s *ColdScrub) { s.Passes, s.LastPass = s.Passes+1, time.Now() })
	return nil
}

// shard reads the cold rows of a replica, and has it repaired if they are damaged.
func (s *Scrub) shard(l *Shard, pause func(bytes int) error) error {
	rows := l.Replica.Cold()
	if rows == nil {
		return nil
	}
	read := func(bytes int) error {
		s.tell(func(s *ColdScrub) {
			s.Blocks++
			s.Bytes += uint64(bytes)
			s.PassBytes += uint64(bytes)
		})
		return pause(bytes)
	}
	for _, number := range rows.Numbers() {
		retained, err := rows.Scrub(number, read)
		switch {
		case errors.Is(err, cold.ErrDamaged):
			s.noteDamaged(l, number, retained, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// noteDamaged reports a damaged generation. One that only stored snapshots name takes
// none of the replica's rows with it: the next snapshot names it no more.
func (s *Scrub) noteDamaged(l *Shard, number uint64, retained bool, err error) {
	if l.Damage.closing.Load() { // it has let go of its rows
		return
	}
	s.tell(func(s *ColdScrub) { s.Damaged++ })
	if retained {
		l.Damage.Note(err)
		return
	}
	s.logger.Error("cold rows of a stored snapshot are damaged: taking another snapshot", "group", l.Group, "generation", number, "err", err)
	if err := l.Replica.TakeSnapshot(); err != nil {
		l.Replica.NoteSnapshot(err)
	}
}
