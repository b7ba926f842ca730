package backup

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
)

var testKeys = credentials.NewStaticV4("key", "secret", "")

// fakeS3 returns a server of a bucket named backups. It takes requests of any time, because a bubble of synctest has its own.
func fakeS3(t *testing.T) *gofakes3.GoFakeS3 {
	t.Helper()
	store := s3mem.New()
	must.Do(t, store.CreateBucket("backups"))
	return gofakes3.New(store, gofakes3.WithTimeSkewLimit(0))
}

// served returns the bucket of a server that listens.
func served(t *testing.T, handler http.Handler) *bucket {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	o, err := parseBucket("s3://backups/of/countd?insecure=true&region=us-east-1&endpoint=" + strings.TrimPrefix(server.URL, "http://"))
	must.Do(t, err)
	b, err := newBucket(o, testKeys, nil)
	must.Do(t, err)
	return b
}

// direct calls the handler. It needs no network, so it can be in a bubble of synctest.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	if r.ContentLength >= 0 { // as a connection would
		r.Header.Set("Content-Length", strconv.FormatInt(r.ContentLength, 10))
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// The model of TestBackupsAreRestored holds for a bucket too: each operation does what it does in memory. Half of the
// archives are sealed.
func TestBackupsInABucketAreRestored(t *testing.T) {
	var both [2]counts
	public, private := keyPair(t)
	recipients, identities := recipientsOf(t, public), identitiesOf(t, private)
	for seed := range 12 {
		plan := rapid.Custom(drawPlan).Example(seed)
		server := fakeS3(t).Server()
		synctest.Test(t, func(t *testing.T) {
			b, err := newBucket(bucketOptions{bucket: "backups", prefix: "a/", endpoint: "s3.example", region: "here", insecure: true}, testKeys, direct{server})
			must.Do(t, err)
			w := newWorld(3)
			w.target.mirror = b
			if seed%2 == 1 {
				w.recipients, w.identities = recipients, identities
			}
			if err := carryOut(w, plan, &both[seed%2]); err != nil {
				t.Errorf("plan %d: %v", seed, err)
			}
		})
	}
	for i := range both {
		c := &both[i]
		t.Logf("%d backups, %d sweeps; %d runs were killed, %d found the archive in use, %d took too long", c.backups, c.sweeps, c.killed, c.busy, c.late)
		if c.backups == 0 || c.sweeps == 0 || c.killed == 0 {
			t.Errorf("sealed %t: not everything happened", i == 1)
		}
	}
}

// Calls are repeated when the store fails for a moment, and when a body breaks off.
func TestCallsOfABucketAreRepeated(t *testing.T) {
	store, calls := fakeS3(t).Server(), atomic.Int64{}
	b := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch n := calls.Add(1); {
		case n%3 == 1:
			http.Error(w, "", http.StatusServiceUnavailable)
		case n%3 == 2 && r.Method == http.MethodGet && !r.URL.Query().Has("list-type"):
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			_, _ = w.Write([]byte("short"))
		default:
			store.ServeHTTP(w, r)
		}
	}))
	body := noise(7, 1000)
	for range 3 {
		must.Do(t, b.Put(t.Context(), "x", body))
		if got, err := b.Get(t.Context(), "x"); err != nil || !bytes.Equal(got, body) {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
		if names, err := b.List(t.Context(), ""); err != nil || len(names) != 1 {
			t.Errorf("listed %q, %v", names, err)
		}
	}
	must.Do(t, b.Delete(t.Context(), "x"))
}

// Every call of a bucket ends, also if the store never answers. A list that ended early is an error.
func TestCallsOfABucketEnd(t *testing.T) {
	store, hangs := fakeS3(t).Server(), make(chan struct{})
	b := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut || r.URL.Query().Has("list-type") && !r.URL.Query().Has("continuation-token") {
			store.ServeHTTP(w, r)
			return
		}
		<-hangs
	}))
	t.Cleanup(func() { close(hangs) })
	for i := range 1001 {
		must.Do(t, b.Put(t.Context(), chunkPath(strings.Repeat("ab", 30)+string(rune('a'+i%26))+strings.Repeat("c", i/26)), nil))
	}
	b.timeout = 100 * time.Millisecond
	if names, err := b.List(t.Context(), ""); err == nil || len(names) > 0 {
		t.Errorf("listed %d names, %v", len(names), err)
	}
	if _, err := b.Get(t.Context(), "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got: %v", err)
	}
	if err := b.Delete(t.Context(), "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deleted: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.List(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("listed without a context: %v", err)
	}
}

// The folder that a console created for the archive, and one in it, are no files.
func TestFoldersOfBuckets(t *testing.T) {
	b := served(t, fakeS3(t).Server())
	for _, key := range []string{"", "chunks/"} {
		must.Do(t, b.Put(t.Context(), key, nil))
	}
	if names, err := b.List(t.Context(), ""); err != nil || len(names) > 0 {
		t.Errorf("listed %q, %v", names, err)
	}
	_, err := CreateArchive(t.Context(), b, strings.Repeat("c1", 16), nil)
	must.Do(t, err)
}

// A change that the store has not answered may still happen; one that it refused may not.
func TestAnswersOfBuckets(t *testing.T) {
	var status atomic.Int64
	b := served(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if status.Load() == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(int(status.Load()))
	}))
	for code, unanswered := range map[int64]bool{0: true, http.StatusBadGateway: true, http.StatusForbidden: false} {
		status.Store(code)
		if b.timeout = callTimeout; unanswered {
			b.timeout = 300 * time.Millisecond // minio-go repeats the call until then
		}
		put, deleted := b.Put(t.Context(), "x", nil), b.Delete(t.Context(), "x")
		if put == nil || deleted == nil || errors.Is(put, errUnanswered) != unanswered || errors.Is(deleted, errUnanswered) != unanswered {
			t.Errorf("%d: %v, %v", code, put, deleted)
		}
	}
}

// A bucket that does not exist is no archive that does not exist.
func TestNoBucket(t *testing.T) {
	b := served(t, fakeS3(t).Server())
	b.name = "others"
	if _, err := b.Get(t.Context(), archiveFile); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "bucket others") {
		t.Errorf("got: %v", err)
	}
}

func TestURLsOfBuckets(t *testing.T) {
	for place, want := range map[string]bucketOptions{
		"s3://backups":  {bucket: "backups", endpoint: "s3.amazonaws.com"},
		"s3://backups/": {bucket: "backups", endpoint: "s3.amazonaws.com"},
		"s3://back.ups/of/countd/?region=eu-west-1":  {bucket: "back.ups", prefix: "of/countd/", endpoint: "s3.amazonaws.com", region: "eu-west-1"},
		"s3://backups?endpoint=[::1]:9000":           {bucket: "backups", endpoint: "[::1]:9000"},
		"s3://b-1/x?endpoint=h:9000&insecure=true":   {bucket: "b-1", prefix: "x/", endpoint: "h:9000", insecure: true},
		"s3://b-1/x?endpoint=h.x.y&insecure=false":   {bucket: "b-1", prefix: "x/", endpoint: "h.x.y"},
		"s3://backups/v1.2/_a?endpoint=127.0.0.1:80": {bucket: "backups", prefix: "v1.2/_a/", endpoint: "127.0.0.1:80"},
	} {
		if got, err := parseBucket(place); err != nil || got != want {
			t.Errorf("%s is %+v, %v", place, got, err)
		}
		_, err := openBucket(place)
		must.Do(t, err)
	}
	for place, want := range map[string]string{
		"s3://":                   "bucket of",
		"s3://Backups":            "bucket of",
		"s3://back_ups/x":         "bucket of",
		"s3://backups:9000/x":     "bucket of",
		"s3://key:secret@backups": "no user or password",
		"s3://backups/a//b":       "prefix of",
		"s3://backups/../b":       "prefix of",
		"s3://backups/a b":        "prefix of",
		"s3://backups/" + strings.Repeat("a", 513): "prefix of",
		"s3://backups?endpoint=k#secret@h":         "has a #",
		"s3://backups?endpoint=k:secret@h":         "endpoint of an archive in a bucket has an @",
		"s3://backups?x=secret;y":                  "query of",
		"s3://backups/k:secret@h":                  "prefix of",
		"s3://backups?endpoint=https://h":          "endpoint of",
		"s3://backups?endpoint=":                   "endpoint of",
		"s3://backups?endpoint=h&endpoint=i":       "endpoint of",
		"s3://backups?endpoint=h:99999999":         "endpoint of",
		"s3://backups?endpoint=h&insecure=1":       "insecure of",
		"s3://backups?insecure=true":               "without an endpoint",
		"s3://backups?region=":                     "region of",
		"s3://backups?profile=x":                   `is "profile", want endpoint, insecure and region`,
		"s3://backups?endpoint=%zz":                "query of",
		"s3://%zz":                                 "no URL",
	} {
		if got, err := parseBucket(place); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s is %+v, %v", place, got, err)
		}
	}
}

// Credentials come from the environment, then from files. Without any, no unsigned request is sent.
func TestCredentialsOfBuckets(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "MINIO_ACCESS_KEY", "MINIO_SECRET_KEY", "AWS_PROFILE", "AWS_CONFIG_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", home)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(home, "credentials"))
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/") // a machine's role would be asked here; it is no loopback address
	t.Setenv("AWS_ACCESS_KEY_ID", "half")
	if v, err := newCredentials().GetWithContext(nil); !errors.Is(err, errNoCredentials) {
		t.Errorf("half of a pair is %q, %v", v.AccessKeyID, err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	if v, err := newCredentials().GetWithContext(nil); !errors.Is(err, errNoCredentials) {
		t.Errorf("nothing is %q, %v", v.AccessKeyID, err)
	}
	must.Do(t, os.WriteFile(filepath.Join(home, "credentials"), []byte("[default]\naws_access_key_id = file\naws_secret_access_key = s\n"), 0o600))
	if v, err := newCredentials().GetWithContext(nil); err != nil || v.AccessKeyID != "file" {
		t.Errorf("the file is %q, %v", v.AccessKeyID, err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "environment")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	if v, err := newCredentials().GetWithContext(nil); err != nil || v.AccessKeyID != "environment" {
		t.Errorf("the environment is %q, %v", v.AccessKeyID, err)
	}
}
