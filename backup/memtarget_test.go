package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// memTarget is a Target in memory. Its operations take no time and do not fail.
type memTarget struct {
	// mirror does each operation too, and must do the same: another Target that takes no time.
	mirror Target
	mu     struct {
		sync.Mutex
		files map[string][]byte
		// ghosts has the files of which the Put never returned. They are there, but a loss of power takes them, unless a
		// later operation has synced their directory.
		ghosts map[string]bool
	}
}

func newMemTarget() *memTarget {
	m := &memTarget{mirror: noMirror{}}
	m.mu.files, m.mu.ghosts = map[string][]byte{}, map[string]bool{}
	return m
}

func (m *memTarget) Put(ctx context.Context, name string, body []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.files[name] = bytes.Clone(body)
	m.syncLocked(name)
	return m.mirror.Put(ctx, name, body)
}

func (m *memTarget) Get(ctx context.Context, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body, there := m.mu.files[name]
	if got, err := m.mirror.Get(ctx, name); !errors.Is(err, errNoMirror) && (!bytes.Equal(got, body) || errors.Is(err, fs.ErrNotExist) == there) {
		return nil, fmt.Errorf("%s has %d bytes, %w, want %d", name, len(got), err, len(body))
	}
	if !there {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return bytes.Clone(body), nil
}

func (m *memTarget) List(ctx context.Context, prefix string) (names []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.mu.files {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if got, err := m.mirror.List(ctx, prefix); !errors.Is(err, errNoMirror) && (err != nil || !slices.Equal(got, names)) {
		return nil, fmt.Errorf("%q lists %q, %w, want %q", prefix, got, err, names)
	}
	return names, nil
}

func (m *memTarget) Delete(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.files, name)
	m.syncLocked(name)
	return m.mirror.Delete(ctx, name)
}

// noMirror stands for no other target.
type noMirror struct{}

var errNoMirror = errors.New("there is no mirror")

func (noMirror) Put(context.Context, string, []byte) error      { return nil }
func (noMirror) Get(context.Context, string) ([]byte, error)    { return nil, errNoMirror }
func (noMirror) List(context.Context, string) ([]string, error) { return nil, errNoMirror }
func (noMirror) Delete(context.Context, string) error           { return nil }

// syncLocked makes the names in the directory of a file durable.
func (m *memTarget) syncLocked(name string) {
	for ghost := range m.mu.ghosts {
		if path.Dir(ghost) == path.Dir(name) {
			delete(m.mu.ghosts, ghost)
		}
	}
}

// isDurable reports whether a file survives a loss of power.
func (m *memTarget) isDurable(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.mu.ghosts[name]
}

// halfPut is a Put that the process does not live to see the end of: its file may not be durable.
func (m *memTarget) halfPut(name string, body []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.mu.files[name]; there {
		return // the old bytes and the new ones are those of one chunk, and the old ones are durable
	}
	m.mu.files[name], m.mu.ghosts[name] = bytes.Clone(body), true
	_ = m.mirror.Put(context.Background(), name, body) // the next Get compares
}

// losePower takes the files that are not durable.
func (m *memTarget) losePower() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.mu.ghosts {
		delete(m.mu.files, name)
		_ = m.mirror.Delete(context.Background(), name) // the next List compares
	}
	clear(m.mu.ghosts)
}

// copied returns a copy of all files.
func (m *memTarget) copied() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.mu.files)
}

var errKilled = errors.New("the process was killed")

// process is a Target as one process sees it: its operations take random times, and the process may be killed before,
// during or after one of them. Like every Target, it does nothing once its context has ended.
type process struct {
	*memTarget
	mu struct {
		sync.Mutex
		rng  *rand.Rand
		left int // operations until the process is killed
	}
	slow bool // some operations take hours
}

func newProcess(m *memTarget, seed uint64, left int, slow bool) *process {
	p := &process{memTarget: m, slow: slow}
	p.mu.rng, p.mu.left = rand.New(rand.NewPCG(seed, 1)), left
	return p
}

// step takes the time of an operation. It returns an error if the operation does not happen, and half if the process is
// killed before it returns.
func (p *process) step(ctx context.Context) (half bool, err error) {
	p.mu.Lock()
	took := time.Duration(p.mu.rng.IntN(100)) * time.Millisecond
	if p.slow && p.mu.rng.IntN(30) == 0 {
		took = time.Duration(p.mu.rng.IntN(30*60)) * time.Minute
	}
	p.mu.left--
	left, odd := p.mu.left, p.mu.rng.IntN(2) == 0
	p.mu.Unlock()
	if left < 0 {
		return false, errKilled
	}
	time.Sleep(took)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return left == 0 && odd, nil
}

func (p *process) Put(ctx context.Context, name string, body []byte) error {
	half, err := p.step(ctx)
	if err != nil {
		return err
	}
	if half {
		p.halfPut(name, body)
		return errKilled
	}
	return p.memTarget.Put(ctx, name, body)
}

func (p *process) Get(ctx context.Context, name string) ([]byte, error) {
	if _, err := p.step(ctx); err != nil {
		return nil, err
	}
	return p.memTarget.Get(ctx, name)
}

func (p *process) List(ctx context.Context, prefix string) ([]string, error) {
	if _, err := p.step(ctx); err != nil {
		return nil, err
	}
	return p.memTarget.List(ctx, prefix)
}

func (p *process) Delete(ctx context.Context, name string) error {
	half, err := p.step(ctx)
	if err != nil {
		return err
	}
	err = p.memTarget.Delete(ctx, name)
	if half {
		return errKilled
	}
	return err
}
