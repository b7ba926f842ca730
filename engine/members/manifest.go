package members

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble's manifest lists its files. A crash may leave a partial record at its end. So Pebble
// treats a damaged record as the end of the manifest, and removes the files that later records
// list. The pairs of these files would be absent without an error, and the next entries would be
// judged without them. To prevent that, the store keeps a sum of the manifest in a file beside it,
// sumName:
//
//	version 1 (1) | bytes (8) | CRC32C of so many first bytes of the manifest (4) | its name … | CRC32C of all before (4)
//
// Integers are big-endian. Open refuses a store whose manifest differs from its sum. It never refuses a
// store because of a crash:
//
//   - The store writes a sum only after the manifest bytes that it covers are durable. Pebble never
//     overwrites bytes of a manifest. So a sum stays true as long as a manifest of its name exists.
//   - No other manifest gets that name: the name is durable before the store writes a sum for it,
//     and Pebble gives a new manifest a higher number than all files that it finds.
//   - The store replaces the sum without a sync. A crash that loses the new sum, or part of it, leaves no sum
//     or an earlier one. Open accepts a missing sum, and the sum of another manifest: after a crash while
//     Pebble begins a manifest, the sum may be that of the new manifest while the old one is in use.
//
// Each Open begins a new manifest, so Open reads a manifest without a sum at most once.
const (
	sumName      = "manifest.sum"
	sumVersion   = 1
	sumHeadBytes = 1 + 8 + 4

	manifestPrefix = "MANIFEST-"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifestSum is the checksum of the first bytes of a manifest.
type manifestSum struct {
	name  string
	bytes uint64
	crc   uint32
}

func (s *manifestSum) appendTo(dst []byte) []byte {
	start := len(dst)
	dst = binary.BigEndian.AppendUint64(append(dst, sumVersion), s.bytes)
	dst = append(binary.BigEndian.AppendUint32(dst, s.crc), s.name...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// parseSum returns false unless the bytes are a whole sum.
func parseSum(b []byte) (s manifestSum, whole bool) {
	end := len(b) - 4
	if end < sumHeadBytes || b[0] != sumVersion || crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return s, false
	}
	return manifestSum{string(b[sumHeadBytes:end]), binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint32(b[9:])}, true
}

// checkManifest returns an ErrDamaged if the manifest of the store in dir differs from its sum.
func checkManifest(fs vfs.FS, dir string) error {
	b, err := readFile(fs, fs.PathJoin(dir, sumName))
	if err != nil {
		return nil // there is no sum, or it proves nothing
	}
	sum, whole := parseSum(b)
	if !whole {
		return nil
	}
	found, err := pebble.Peek(dir, fs)
	if err != nil || !found.Exists || fs.PathBase(found.ManifestFilename) != sum.name {
		return nil // Pebble reports an error when it opens the store; the sum of another manifest proves nothing
	}
	f, err := fs.Open(found.ManifestFilename)
	if err != nil {
		return nil // Pebble reports the error when it opens the store
	}
	defer f.Close()
	crc := crc32.New(castagnoli)
	n, err := io.CopyN(crc, f, int64(sum.bytes))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("cannot read %s: %w", sum.name, err)
	}
	if uint64(n) != sum.bytes || crc.Sum32() != sum.crc {
		return fmt.Errorf("%w: %s differs from what was written", ErrDamaged, sum.name)
	}
	return nil
}

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

// summingFS keeps the sum of the manifest that Pebble writes.
type summingFS struct{ vfs.FS }

// Unwrap implements vfs.FS.
func (fs summingFS) Unwrap() vfs.FS { return fs.FS }

// Create implements vfs.FS.
func (fs summingFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	if base := fs.PathBase(name); err == nil && strings.HasPrefix(base, manifestPrefix) {
		f = &manifest{File: f, fs: fs.FS, dir: fs.PathDir(name), sum: manifestSum{name: base}}
	}
	return f, err
}

// manifest is a manifest that one goroutine at a time writes.
type manifest struct {
	vfs.File
	fs  vfs.FS
	dir string
	sum manifestSum // sum of all bytes written

	named bool // the name is durable
}

// Write implements vfs.File. If it fails, Pebble ends the process.
func (m *manifest) Write(p []byte) (int, error) {
	crc := crc32.Update(m.sum.crc, castagnoli, p) // before the write, which may change p
	n, err := m.File.Write(p)
	if err == nil {
		m.sum.bytes, m.sum.crc = m.sum.bytes+uint64(n), crc
	}
	return n, err
}

// Sync implements vfs.File. Pebble makes a manifest durable only by this call.
func (m *manifest) Sync() error {
	err := m.File.Sync()
	if err != nil {
		return err
	}
	if !m.named {
		m.named = m.syncName() == nil
	}
	if m.named {
		_ = m.writeSum() // the earlier sum stays true
	}
	return nil
}

func (m *manifest) syncName() error {
	dir, err := m.fs.OpenDir(m.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (m *manifest) writeSum() error {
	path := m.fs.PathJoin(m.dir, sumName)
	f, err := m.fs.Create(path+".tmp", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(m.sum.appendTo(nil))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return m.fs.Rename(path+".tmp", path)
}
