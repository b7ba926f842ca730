package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientadmin "github.com/countd/countd/client/admin"
)

// rotatedFormat is the time in the name of a rotated file: audit.log becomes
// audit-2026-11-23T12-00-00.000.log.
const rotatedFormat = "2006-01-02T15-04-05.000"

// Tail returns the last events, at most n, the oldest first. It reads the rotated files too,
// because a rotation may have just emptied the current file. It skips lines that are no events,
// such as a line that a crash cut off.
func (l *AuditLog) Tail(n int) ([]clientadmin.AuditEvent, error) {
	if l == nil {
		return nil, ErrNoAuditLog
	}
	files, err := l.open()
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	events := []clientadmin.AuditEvent{}
	for _, f := range files {
		if len(events) >= n || err != nil {
			break
		}
		var before []clientadmin.AuditEvent
		before, err = tailOf(f)
		events = append(before, events...)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read audit log: %w", err)
	}
	return events[max(len(events)-n, 0):], nil
}

// open opens the files, the newest first. It holds the lock because a rotation renames them.
func (l *AuditLog) open() (files []*os.File, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	paths, err := rotated(l.path)
	if err != nil {
		return nil, err
	}
	for _, path := range append(paths, l.path) {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file was deleted meanwhile
		}
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	slices.Reverse(files)
	return files, nil
}

// rotated returns the rotated files of the log at path, the oldest first.
func rotated(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path)) // sorted by name
	if err != nil {
		return nil, err
	}
	ext := filepath.Ext(path)
	prefix := strings.TrimSuffix(filepath.Base(path), ext) + "-"
	var paths []string
	for _, e := range entries {
		at, ok := strings.CutPrefix(e.Name(), prefix)
		at, ok2 := strings.CutSuffix(at, ext)
		if _, err := time.Parse(rotatedFormat, at); ok && ok2 && err == nil {
			paths = append(paths, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return paths, nil
}

// tailOf returns the last events of a file.
func tailOf(f *os.File) ([]clientadmin.AuditEvent, error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(max(size-tailBytesMax, 0), io.SeekStart)
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, tailBytesMax))
	}
	events := []clientadmin.AuditEvent{}
	for line := range bytes.Lines(text) {
		var e clientadmin.AuditEvent
		if json.Unmarshal(line, &e) == nil && e.Outcome != "" {
			events = append(events, e)
		}
	}
	return events, err
}
