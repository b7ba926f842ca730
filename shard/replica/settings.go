package replica

import (
	"sync"

	"github.com/hashicorp/raft"
)

// settings changes the settings of raft that can change at run time. raft replaces all of them at
// once, so without a lock, concurrent changes would overwrite each other.
type settings struct {
	mu   sync.Mutex
	raft *raft.Raft // set once raft has started
}

func (s *settings) change(change func(*raft.ReloadableConfig)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	conf := s.raft.ReloadableConfig()
	change(&conf)
	return s.raft.ReloadConfig(conf)
}
