package admin

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/countd/countd/client"
)

// Snapshot streams one shard's rows, as of Index, from the server.
type Snapshot struct {
	io.ReadCloser        // the caller reads it to the end and closes it; if bytes are missing, the last Read fails
	Bytes         int64  // length of the snapshot
	Index         uint64 // log index of the snapshot
	Rows          uint64
	Digest        string // digest of the rows, 16 hex digits
	// Modulus is the number of shards by which the snapshot's ids were chosen. If the keyspace grows, another shard may
	// have another one.
	Modulus int
}

// SavedSource is a source in a backup. The snapshots of the shards store the source's positions
// under Number.
type SavedSource struct {
	Name       string          `json:"name"`
	Number     string          `json:"number"`
	Origin     string          `json:"origin,omitempty"` // its number in the backup from which it was created
	Config     json.RawMessage `json:"config"`
	Partitions json.RawMessage `json:"partitions"` // by number
}

// SavedSources returns the sources of the cluster for a backup.
func (c Client) SavedSources(ctx context.Context) ([]SavedSource, error) {
	return client.AskMember[[]SavedSource](ctx, c.c, get("/v1/admin/sources"), "sources")
}

// RestoreSource creates a source from the backup of another cluster, paused. A shard that is
// restored later continues the source at the shard's own position. The call may be repeated.
func (c Client) RestoreSource(ctx context.Context, s SavedSource) (Source, error) {
	return client.Ask[Source](ctx, c.c, post("/v1/admin/sources", s))
}

// Restored describes a shard after a restore.
type Restored struct {
	Group  uint32 `json:"group"`
	Rows   uint64 `json:"rows"`
	Digest string `json:"digest"`
	// CursorsSetBack is the number of cursors that were beyond the last notice and were set back
	// to it. Rows and Digest then differ from those of the snapshot.
	CursorsSetBack uint64 `json:"cursors_set_back,omitempty"`
}

// Snapshot takes a snapshot of a shard, which is named by the number of its group. The
// client sends the request to the current address, which may redirect to the leader, and
// never retries it. The server must begin the snapshot within client.TimeoutMax; the answer has no
// time limit. The first byte arrives once the snapshot is written and checked. For a large
// shard that takes minutes.
func (c Client) Snapshot(ctx context.Context, group uint32) (*Snapshot, error) {
	r, err := c.streamRequest(ctx, http.MethodGet, groupPath(group, "snapshot"), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Stream(c.c, r)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{ReadCloser: resp.Body, Bytes: resp.ContentLength, Digest: resp.Header.Get("Countd-Digest")}
	s.Index, err = strconv.ParseUint(resp.Header.Get("Countd-Index"), 10, 64)
	if err == nil {
		s.Rows, err = strconv.ParseUint(resp.Header.Get("Countd-Rows"), 10, 64)
	}
	if err == nil && resp.Header.Get("Countd-Modulus") != "" { // an older program sends none
		s.Modulus, err = strconv.Atoi(resp.Header.Get("Countd-Modulus"))
	}
	if err != nil || s.Bytes < 0 || len(s.Digest) != 16 {
		resp.Body.Close()
		return nil, fmt.Errorf("cannot read the head of the snapshot of group %d: %w", group, errors.Join(err, errNoHead))
	}
	return s, nil
}

var errNoHead = errors.New("its index, rows, digest or length is not told")

// Restore replaces the rows of a shard by those of a snapshot. The parameter bytes is the
// snapshot's length. If the shard has rows, outboxes or members, the server refuses the restore.
// With force, it deletes them first. The client never retries this request. To repeat a restore
// that was cut short, set force.
//
// If the snapshot's columns differ from the keyspace's, columns holds the snapshot's column names
// by number, "" for a dropped column. Otherwise columns is nil. The server restores each count to
// the column of the same name. The digest of the answer is then the shard's digest, not the
// snapshot's.
func (c Client) Restore(ctx context.Context, group uint32, snapshot io.Reader, bytes int64, force bool, columns []string) (Restored, error) {
	return c.restore(ctx, group, snapshot, bytes, "?force="+strconv.FormatBool(force), columns)
}

// SnapshotFile is the content of a Snapshot.
type SnapshotFile struct {
	io.Reader
	Bytes int64
}

// RestoreByIDs is Restore for the ids of a shard, from snapshots of a keyspace with any number of shards. It needs all
// snapshots that may have ids of the shard. created is the number of shards at the creation of that keyspace, or 1 if its
// sharding is by hash. The digest of the answer is the shard's.
func (c Client) RestoreByIDs(ctx context.Context, group uint32, snapshots []SnapshotFile, created int, force bool, columns []string) (Restored, error) {
	const lengthBytes = 8
	bytes, parts := int64(0), []io.Reader{}
	for _, s := range snapshots {
		length := binary.LittleEndian.AppendUint64(nil, uint64(s.Bytes))
		bytes, parts = bytes+lengthBytes+s.Bytes, append(parts, strings.NewReader(string(length)), s)
	}
	return c.restore(ctx, group, io.MultiReader(parts...), bytes, fmt.Sprintf("?force=%t&divisor=%d", force, created), columns)
}

func (c Client) restore(ctx context.Context, group uint32, snapshot io.Reader, bytes int64, query string, columns []string) (Restored, error) {
	if columns != nil {
		query += "&columns=" + url.QueryEscape(strings.Join(columns, ","))
	}
	r, err := c.streamRequest(ctx, http.MethodPost, groupPath(group, "restore")+query, snapshot)
	if err != nil {
		return Restored{}, err
	}
	r.ContentLength = bytes
	r.Header.Set("Content-Type", "application/octet-stream")
	resp, err := client.Stream(c.c, r)
	if err != nil {
		return Restored{}, err
	}
	defer resp.Body.Close()
	var answer Restored
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&answer); err != nil {
		return Restored{}, fmt.Errorf("cannot read the answer of the restore: %w", err)
	}
	return answer, nil
}

func (c Client) streamRequest(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.c.Addr()+"/v1/admin/"+path, body)
	if err != nil {
		return nil, fmt.Errorf("cannot make a request: %w", err)
	}
	r.Header.Set("Countd-Timeout", client.TimeoutMax.Round(time.Second).String())
	return r, nil
}
