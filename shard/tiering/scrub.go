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
	// scrubBytesPerSecondMax bounds the reads of a scrub to about a twentieth of a small disk's
	// bandwidth. At this rate, a scrub of more than 4.8 TB takes longer than a week.
	scrubBytesPerSecondMax = 8 << 20
	// scrubPieceBytes is the number of bytes read between two pauses: about 15 blocks.
	scrubPieceBytes = 64 << 10
	// scrubRestMin is the shortest pause between two passes, for a node with almost no cold rows.
	scrubRestMin = time.Second
)

// ColdScrub is the progress of the scrub of a node's cold rows and sets of members. Counts begin
// at the node's start.
type ColdScrub struct {
	EverySeconds float64   `json:"every_seconds"` // 0 for never
	Blocks       uint64    `json:"blocks"`        // blocks of cold rows read
	Bytes        uint64    `json:"bytes"`
	PassBytes    uint64    `json:"pass_bytes"` // bytes read by the running pass, or by the last pass
	PassOf       uint64    `json:"pass_of"`    // bytes that this pass reads in all, estimated
	Passes       uint64    `json:"passes"`     // completed passes
	LastPass     time.Time `json:"last_pass,omitzero"`
	Damaged      uint64    `json:"damaged_generations"` // times that a pass found a damaged generation, or a shard with damaged sets
}

// Scrub reads all cold rows and sets periodically, so that it finds damage while other replicas
// are intact. It spreads the reads over the time of a pass.
type Scrub struct {
	shards   func() []*Shard
	stored   func() *members.Store // returns nil before OpenSets
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

func (s *Scrub) tell(change func(*ColdScrub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.mu.ColdScrub)
}

// Run runs one pass after another. Open starts it; Close stops it and waits.
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

// pause returns a function to call after each block of a pass. That function waits so that the
// whole pass takes about passTime, and returns an error once the node is stopping.
func (s *Scrub) pause(began time.Time, passTime time.Duration) func(bytes int) error {
	piece := 0
	return func(bytes int) error {
		if piece += bytes; piece < scrubPieceBytes {
			return nil
		}
		pause := time.Duration(piece) * time.Second / scrubBytesPerSecondMax
		piece = 0
		if now := s.Report(); now.PassOf > 0 {
			due := time.Duration(float64(passTime) * min(1, float64(now.PassBytes)/float64(now.PassOf)))
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

// Pass reads all cold rows and sets once, in a random order of shards. So each shard is read from
// time to time, even if no process lives for a whole pass. If the argument pause returns an error,
// Pass returns it.
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
		if err := pause(scrubPieceBytes); err != nil { // counts the sets as one piece
			return err
		}
	}
	s.tell(func(s *ColdScrub) { s.Passes, s.LastPass = s.Passes+1, time.Now() })
	return nil
}

// shard reads the cold rows of a replica and records damage, which the node then repairs.
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
	for _, name := range rows.Names() {
		err := rows.Scrub(name, read)
		switch {
		case errors.Is(err, cold.ErrDamaged):
			s.noteDamaged(l, name, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// noteDamaged records a damaged generation of cold rows. If the table does not use it, only stored snapshots may use the
// generation. Then the replica has lost no row, and its next snapshot does not use the generation. If only other shards
// use it, which have it from a split, their scrubs read it too.
func (s *Scrub) noteDamaged(l *Shard, name cold.Name, err error) {
	if l.Damage.closing.Load() { // the replica is closing and may have released its rows
		return
	}
	uses := l.FSM.Used()[name]
	if !uses && !l.Replica.Cold().Pinned()[name] {
		return
	}
	s.tell(func(s *ColdScrub) { s.Damaged++ })
	if uses {
		l.Damage.Note(err)
		return
	}
	s.logger.Error("cold rows of a stored snapshot are damaged: taking another snapshot", "group", l.Group, "generation", name, "err", err)
	if err := l.Replica.Snapshotter().Take(); err != nil {
		l.Replica.Snapshotter().Note(err)
	}
}
