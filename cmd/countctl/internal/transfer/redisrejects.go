package transfer

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"

	"github.com/countd/countd/cmd/countctl/internal/csvimport"
	"github.com/countd/countd/cmd/countctl/internal/redisimport"
	"github.com/countd/countd/internal/atomicfile"
)

// redisRejects is the file of values that an import from Redis could not copy. It is made with
// the first of them. It is only ever appended to: it may hold rejects of an earlier run, of
// this or of another import from that Redis.
type redisRejects struct {
	path     string
	f        *os.File // nil until the first value
	unsynced bool
}

const redisRejectsHeader = "reason,key,field,value\n"

func (r *redisRejects) add(b *redisimport.BadValueError) error {
	if r.f == nil {
		if err := r.open(); err != nil {
			return fmt.Errorf("cannot open the rejects: %w", err)
		}
	}
	r.unsynced = true
	w := csv.NewWriter(r.f)
	w.Write([]string{b.Reason, b.Key, b.Field, b.Value}) // its error is returned by Error
	if w.Flush(); w.Error() != nil {
		return fmt.Errorf("cannot write the rejects: %w", w.Error())
	}
	return nil
}

// open opens the file behind its rows. A crash may have cut off the last one.
func (r *redisRejects) open() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	header := make([]byte, len(redisRejectsHeader))
	n, _ := f.ReadAt(header, 0) // a shorter file is not one of rejects, or is new
	last := make([]byte, 1)
	size, err := f.Seek(0, 2)
	switch {
	case err == nil && n == 0:
		_, err = f.WriteString(redisRejectsHeader)
	case err == nil && string(header) != redisRejectsHeader:
		err = fmt.Errorf("%s: %w", r.path, csvimport.ErrNotRejects)
	case err == nil:
		if _, err = f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			_, err = f.WriteString("\n")
		}
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.f = f
	return nil
}

// sync makes durable what was added, and the file's name.
func (r *redisRejects) sync() error {
	if !r.unsynced {
		return nil
	}
	if err := atomicfile.Sync(r.f); err != nil {
		return fmt.Errorf("cannot sync the rejects: %w", err)
	}
	r.unsynced = false
	return nil
}

// close closes the file; sync was called for all that is in it.
func (r *redisRejects) close() {
	if r.f != nil {
		_ = r.f.Close()
	}
}
