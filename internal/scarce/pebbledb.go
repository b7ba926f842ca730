package scarce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/internal/program"
)

// DBConfig configures NewDB. Every field must be set.
type DBConfig struct {
	Dir    string // directory that only the database uses
	Holds  string // what the database contains, such as "cold rows", for errors and the log
	FS     vfs.FS
	Logger *slog.Logger
	// Fatal is called if a necessary write fails. It should end the process.
	Fatal func(error)
	// Damaged is called when Pebble finds a damaged file. Readers of the file get an error. By
	// default Pebble would end the process.
	Damaged func(pebble.DataCorruptionInfo)
}

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the database is closed")

// DB is a Pebble database. A caller must use it only between Use and done. Its methods are safe for
// concurrent use.
type DB struct {
	*pebble.DB
	cfg   DBConfig
	cache *pebble.Cache
	limit program.LogLimiter

	Started  atomic.Bool        // set by the owner after Open; enables the waits of Waiting
	Stopping context.Context    // ends when Close begins
	Stop     context.CancelFunc // ends Stopping, also before Close

	// gate is held for reading while Pebble is in use, and for writing during Close. A caller
	// acquires gate only once, and before all other locks. So a caller that waits for gate during
	// Close holds no other lock.
	gate   sync.RWMutex
	closed bool
}

// NewDB returns a database that is not open yet.
func NewDB(cfg DBConfig) *DB {
	d := &DB{cfg: cfg}
	d.Stopping, d.Stop = context.WithCancel(context.Background())
	return d
}

// Waiting returns the file system for Open. From Started until Stopping, its calls wait for disk
// space and file descriptors; see Wait.
func (d *DB) Waiting() vfs.FS {
	return Wait{Dir: d.cfg.Dir, What: d.cfg.Holds, Logger: d.cfg.Logger, Started: &d.Started, Closing: d.Stopping.Done()}.Over(d.cfg.FS)
}

// Open opens the database, and creates it if it does not exist. It sets further options in o. The
// DB takes over the caller's reference to o.Cache, even if Open returns an error.
func (d *DB) Open(o *pebble.Options) (err error) {
	o.Logger, o.FormatMajorVersion, o.MaxOpenFiles = logger{d}, pebble.FormatNewest, TableFiles()
	o.EventListener = &pebble.EventListener{
		DataCorruption: d.cfg.Damaged,
		// End the process if a flush fails for good, because Pebble would retry it forever without
		// a pause.
		FlushEnd: func(info pebble.FlushInfo) {
			var file *fs.PathError
			if errors.As(info.Err, &file) && !Is(info.Err) && d.Stopping.Err() == nil {
				d.fatal(info.Err)
			}
		},
	}
	d.cache = o.Cache
	if d.DB, err = pebble.Open(d.cfg.Dir, o); err != nil {
		d.cache.Unref()
		return fmt.Errorf("cannot open %s in %s: %w", d.cfg.Holds, d.cfg.Dir, err)
	}
	return nil
}

// Close waits until the database is no longer in use, calls beforeClose, and closes the database.
// Further calls do nothing.
func (d *DB) Close(beforeClose func()) error {
	d.Stop()
	d.gate.Lock()
	defer d.gate.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	beforeClose()
	defer d.cache.Unref()
	switch err := d.DB.Close(); {
	case NoRoom(err):
		// Pebble could not write the trailer of its log. This does no harm, because all data that
		// must be durable was synced before.
		d.cfg.Logger.Warn("the disk is full: the log of a database is closed as after a crash", "of", d.cfg.Holds, "dir", d.cfg.Dir, "err", err)
	case err != nil:
		return fmt.Errorf("cannot close %s: %w", d.cfg.Holds, err)
	}
	return nil
}

// Use keeps the database open until the caller calls done.
func (d *DB) Use() (done func(), err error) {
	d.gate.RLock()
	if d.closed {
		d.gate.RUnlock()
		return nil, ErrClosed
	}
	return d.gate.RUnlock, nil
}

// Limited returns a logger for messages that many readers or writers may repeat. It limits how
// often a message is written.
func (d *DB) Limited() *slog.Logger { return d.limit.Logger(d.cfg.Logger) }

func (d *DB) fatal(err error) {
	d.cfg.Fatal(fmt.Errorf("cannot write %s in %s: %w", d.cfg.Holds, d.cfg.Dir, err))
}

// PrefixEnd returns the least key above all keys with a prefix. The prefix must contain a byte
// other than FF.
func PrefixEnd(prefix []byte) []byte {
	b := append([]byte(nil), prefix...)
	for i := len(b) - 1; ; i-- {
		if b[i]++; b[i] != 0 {
			return b
		}
	}
}

// logger forwards Pebble's messages.
type logger struct{ db *DB }

func (l logger) Infof(format string, args ...any) {
	l.db.cfg.Logger.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (l logger) Errorf(format string, args ...any) {
	for i, arg := range args {
		if err, is := arg.(error); is { // Pebble formats errors with %+v, which would print their stack
			args[i] = err.Error()
		}
	}
	l.db.Limited().Warn("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf ends the goroutine, because it must not return to Pebble.
func (l logger) Fatalf(format string, args ...any) {
	l.db.fatal(fmt.Errorf(format, args...))
	runtime.Goexit()
}
