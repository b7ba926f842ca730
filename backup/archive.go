package backup

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	archiveFile   = "archive.json"
	archiveFormat = "countd archive 1"
	// nameTime is the form of the time in names. Names of backups are ordered by it.
	nameTime = "20060102T150405Z"
	// workers bounds the chunks that are sealed, stored or read at once, and so the memory of a run: each has up to
	// twice chunkBytesMax.
	workers = 4
)

// Latest stands for the newest backup of an archive.
const Latest = "latest"

var (
	// ErrNoArchive is returned for a target without an archive.
	ErrNoArchive = errors.New("there is no archive")
	// ErrOtherCluster is returned for an archive, or a manifest in it, of another cluster.
	ErrOtherCluster = errors.New("the archive is of another cluster")
)

var backupName = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$`)

// Archive holds the backups of one cluster in a target. Its methods may be called concurrently, also by other
// processes.
type Archive struct {
	target    Target
	clusterID string
	sealed    bool // all backups are
	sealing   *sealing
	cutting   cutting
	now       func() time.Time
	waitMax   time.Duration // how long a backup waits for a sweep
	mu        struct {
		sync.Mutex
		// damaged has the names of the chunks that this Archive found missing or damaged. A backup puts them again.
		damaged map[string]bool
	}
}

// archiveBody is the content of archiveFile.
type archiveBody struct {
	Format    string `json:"format"`
	ClusterID string `json:"cluster_id"`
	Sealed    bool   `json:"sealed,omitempty"`
}

func (b archiveBody) text() ([]byte, error) {
	text, err := json.Marshal(b)
	return append(text, '\n'), err
}

// HasArchive reports whether a target holds an archive, whole or damaged.
func HasArchive(ctx context.Context, target Target) (bool, error) {
	_, err := target.Get(ctx, archiveFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// OpenArchive opens the archive in a target, to read and sweep it. If it is sealed, identities open its chunks; they may
// be nil.
func OpenArchive(ctx context.Context, target Target, identities *Identities) (*Archive, error) {
	body, err := readArchive(ctx, target)
	if err != nil {
		return nil, err
	}
	a, err := newArchive(target, body, nil)
	if err == nil {
		a.sealing.identities = identities
	}
	return a, err
}

// CreateArchive opens the archive of a cluster, which it creates in an empty target. New chunks are sealed for the
// recipients. It refuses recipients for an archive that is not sealed, and none for one that is.
func CreateArchive(ctx context.Context, target Target, clusterID string, recipients *Recipients) (*Archive, error) {
	want := archiveBody{archiveFormat, clusterID, recipients != nil}
	body, err := readArchive(ctx, target)
	if errors.Is(err, ErrNoArchive) {
		if err := create(ctx, target, want); err != nil {
			return nil, err
		}
		body, err = readArchive(ctx, target)
	}
	if err != nil {
		return nil, err
	}
	if err := body.mustBe(want); err != nil {
		return nil, err
	}
	return newArchive(target, body, recipients)
}

// mustBe returns an error unless the archive is that of the cluster of want, and as sealed as want.
func (b archiveBody) mustBe(want archiveBody) error {
	if err := sameCluster(archiveFile, b.ClusterID, want.ClusterID); err != nil {
		return err
	}
	switch {
	case b.Sealed && !want.Sealed:
		return errors.New("the archive is sealed, so its backups need recipients: give --backup-recipients")
	case !b.Sealed && want.Sealed:
		return errors.New("the archive is not sealed, and stays so: give no --backup-recipients, or a new archive")
	}
	return nil
}

func newArchive(target Target, body archiveBody, recipients *Recipients) (*Archive, error) {
	s, err := newSealing(recipients)
	if err != nil {
		return nil, err
	}
	return &Archive{target: target, clusterID: body.ClusterID, sealed: body.Sealed, sealing: s, cutting: usualCutting, now: time.Now, waitMax: claimWaitMax}, nil
}

func create(ctx context.Context, target Target, body archiveBody) error {
	names, err := target.List(ctx, "")
	if err != nil {
		return fmt.Errorf("cannot list the target: %w", err)
	}
	// A run that was killed while it created the archive may have left a temporary file.
	if i := slices.IndexFunc(names, func(name string) bool { return !isTemporary(name) }); i >= 0 {
		return fmt.Errorf("cannot create an archive where something else is: it has %s; give a new or empty directory", names[i])
	}
	text, err := body.text()
	if err == nil {
		err = target.Put(ctx, archiveFile, text)
	}
	if err != nil {
		return fmt.Errorf("cannot create the archive: %w", err)
	}
	return nil
}

// readArchive returns what archiveFile says.
func readArchive(ctx context.Context, target Target) (b archiveBody, err error) {
	text, err := target.Get(ctx, archiveFile)
	if errors.Is(err, fs.ErrNotExist) {
		return b, fmt.Errorf("%w: it has no %s", ErrNoArchive, archiveFile)
	}
	if err != nil {
		return b, fmt.Errorf("cannot open the archive: %w", err)
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return b, fmt.Errorf("%s is damaged: %w", archiveFile, err)
	}
	if b.Format != archiveFormat {
		return b, fmt.Errorf("%s has format %q, this program reads %q", archiveFile, b.Format, archiveFormat)
	}
	if want, err := b.text(); err != nil || !bytes.Equal(text, want) {
		return b, fmt.Errorf("%s is damaged: it is not %s", archiveFile, bytes.TrimSpace(want))
	}
	return b, nil
}

func sameCluster(what, is, want string) error {
	if is != want {
		return fmt.Errorf("%w: %s is of cluster %s, not of %s", ErrOtherCluster, what, is, want)
	}
	return nil
}

// newName returns a name for something that begins at a time. No two calls return the same name.
func (a *Archive) newName(at time.Time) string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return at.UTC().Format(nameTime) + "-" + hex.EncodeToString(random[:])
}

// ClusterID returns the id of the cluster of all backups.
func (a *Archive) ClusterID() string { return a.clusterID }

func manifestPath(name string) string { return backupsDir + name + ".json" }

// chunkPath returns the path of a chunk by its stored name.
func chunkPath(name string) string { return chunksDir + name[:2] + "/" + name }

// names returns the names of all backups, the oldest first.
func (a *Archive) names(ctx context.Context) ([]string, error) {
	files, err := a.target.List(ctx, backupsDir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the backups: %w", err)
	}
	var names []string
	for _, file := range files {
		if name, is := strings.CutSuffix(path.Base(file), ".json"); is && backupName.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Find returns the full name of a backup: of the newest one for Latest, or of the only one that begins with prefix.
func (a *Archive) Find(ctx context.Context, prefix string) (string, error) {
	names, err := a.names(ctx)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("%w: the archive has no backup", ErrIncomplete)
	}
	if prefix == Latest {
		newest := names[len(names)-1]
		if a.isFuture(newest) {
			return "", fmt.Errorf("the backup %s lies in the future, by a clock that was or is wrong, so it is unknown which is the latest: give its name", newest)
		}
		return newest, nil
	}
	var found []string
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			found = append(found, name)
		}
	}
	switch {
	case prefix == "" || len(found) == 0:
		return "", fmt.Errorf("the archive has no backup %q; the newest is %s", prefix, names[len(names)-1])
	case len(found) > 1:
		return "", fmt.Errorf("%d backups begin with %q, such as %s and %s", len(found), prefix, found[0], found[1])
	}
	return found[0], nil
}

// Entry is a backup in a list.
type Entry struct {
	Name     string
	Manifest *Manifest // nil if Err is set
	Err      error     // the manifest cannot be read
}

// Begun returns when the backup began, by its name.
func (e Entry) Begun() time.Time {
	text, _, _ := strings.Cut(e.Name, "-")
	t, _ := time.Parse(nameTime, text) // names match backupName
	return t
}

// List returns all backups, the oldest first.
func (a *Archive) List(ctx context.Context) (all []Entry, err error) {
	err = a.each(ctx, func(e Entry) { all = append(all, e) })
	return all, err
}

// each calls f for all backups, the oldest first.
func (a *Archive) each(ctx context.Context, f func(Entry)) error {
	names, err := a.names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		m, err := a.manifest(ctx, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a sweep has just deleted it
		}
		if ctx.Err() != nil {
			return err
		}
		f(Entry{name, m, err})
	}
	return nil
}

// futureMin is how far the name of a backup must lie ahead for its clock to have been wrong: clocks may differ by less.
const futureMin = 30 * time.Minute

// isFuture reports whether a backup began later than now, by a clock that was wrong.
func (a *Archive) isFuture(name string) bool {
	return Entry{Name: name}.Begun().After(a.now().Add(futureMin))
}

// Newest returns the newest backup that can be read, has all its chunks, and does not lie in the future. Its name is
// empty if there is none. It reads no older manifests.
func (a *Archive) Newest(ctx context.Context) (Entry, error) {
	names, err := a.names(ctx)
	if err != nil || len(names) == 0 {
		return Entry{}, err
	}
	there, err := a.chunks(ctx)
	if err != nil {
		return Entry{}, err
	}
	for _, name := range slices.Backward(names) {
		if a.isFuture(name) {
			continue
		}
		m, err := a.manifest(ctx, name)
		if ctx.Err() != nil {
			return Entry{}, ctx.Err()
		}
		if err == nil && m.missing(there) == "" {
			return Entry{Name: name, Manifest: m}, nil
		}
	}
	return Entry{}, nil
}

// Open opens a backup by its full name.
func (a *Archive) Open(ctx context.Context, name string) (*Backup, error) {
	m, err := a.manifest(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Backup{Manifest: m, From: name, open: func(ctx context.Context, f *File) (io.ReadCloser, error) {
		return a.openFile(ctx, m.SealedFor, f), nil
	}}, nil
}

// The text of a manifest in an archive is manifestHead, the SHA-256 of the JSON, manifestMiddle, the JSON,
// manifestTail. That is a JSON object too.
const (
	manifestHead   = `{"sha256":"`
	manifestMiddle = `","manifest":`
	manifestTail   = "}\n"
)

// appendManifest appends the text of a manifest.
func appendManifest(b []byte, m *Manifest) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(text) > archiveManifestBytesMax {
		return nil, fmt.Errorf("the manifest has %d bytes, more than %d", len(text), archiveManifestBytesMax)
	}
	sum := sha256.Sum256(text)
	b = append(hex.AppendEncode(append(b, manifestHead...), sum[:]), manifestMiddle...)
	return append(append(b, text...), manifestTail...), nil
}

// openManifest returns an error for a text that no backup could have written.
func openManifest(text []byte) (*Manifest, error) {
	rest, ok := bytes.CutPrefix(text, []byte(manifestHead))
	sum, rest, found := bytes.Cut(rest, []byte(manifestMiddle))
	body, ends := bytes.CutSuffix(rest, []byte(manifestTail))
	if !ok || !found || !ends || len(body) > archiveManifestBytesMax {
		return nil, fmt.Errorf("%w: it is not a manifest with its checksum", ErrIncomplete)
	}
	if got := sha256.Sum256(body); hex.EncodeToString(got[:]) != string(sum) {
		return nil, fmt.Errorf("%w: its SHA-256 is %x, want %s", ErrIncomplete, got, sum)
	}
	m, err := parseManifest(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	if m.SealedFor != "" && !chunkName.MatchString(m.SealedFor) {
		return nil, fmt.Errorf("%w: it is sealed for %q, which is no SHA-256", ErrIncomplete, m.SealedFor)
	}
	for _, k := range m.Keyspaces {
		for _, f := range k.Files {
			if err := f.checkChunks(); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrIncomplete, err)
			}
		}
	}
	return m, nil
}

var chunkName = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkChunks returns an error unless the chunks can be those of the file.
func (f *File) checkChunks() error {
	total := int64(0)
	for i, c := range f.Chunks {
		if !chunkName.MatchString(c.SHA256) || c.Bytes < 1 || c.Bytes > chunkBytesMax {
			return fmt.Errorf("chunk %d of %s has the SHA-256 %q and %d bytes", i, f.Name, c.SHA256, c.Bytes)
		}
		total += c.Bytes
	}
	if total != f.Bytes {
		return fmt.Errorf("%s has %d bytes, and its chunks %d", f.Name, f.Bytes, total)
	}
	return nil
}

func (a *Archive) manifest(ctx context.Context, name string) (*Manifest, error) {
	text, err := a.target.Get(ctx, manifestPath(name))
	if err != nil {
		return nil, fmt.Errorf("cannot read the manifest of backup %s: %w", name, err)
	}
	m, err := openManifest(text)
	if err == nil {
		err = sameCluster("its manifest", m.ClusterID, a.clusterID)
	}
	if err == nil && a.sealed != (m.SealedFor != "") {
		err = fmt.Errorf("%w: sealed is %t in %s, and not in its manifest", ErrIncomplete, a.sealed, archiveFile)
	}
	if err != nil {
		return nil, fmt.Errorf("backup %s: %w", name, err)
	}
	return m, nil
}
