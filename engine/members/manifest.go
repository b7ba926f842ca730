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

// Pebble's manifest lists Pebble's files. A crash may leave a partial record at the end of the
// manifest. So Pebble treats a damaged record as the end, and removes the files that later records
// list. Then the pairs of these files would be absent without an error, and Apply would decide ops
// without them. To prevent that, the store keeps a checksum of the manifest (the sum) in the file
// sumName:
//
//	version 1 (1) | bytes (8) | CRC32C of so many first bytes of the manifest (4) | its name … | CRC32C of all before (4)
//
// Integers are big-endian. Open refuses a store whose manifest does not match the sum. It never
// refuses a store because of a crash:
//
//   - The store writes a sum only after the manifest bytes that it covers are durable. Pebble never
//     overwrites bytes of a manifest. So a sum stays right as long as its manifest exists.
//   - No other manifest gets the same name. The name is durable before the store writes the sum,
//     and Pebble gives a new manifest a higher number than all files that exist.
//   - The store replaces the sum without a sync. If a crash loses the new sum or a part of it,
//     there is no sum or an older one. Open accepts a missing sum. It also accepts the sum of
//     another manifest: if a crash comes while Pebble begins a new manifest, the old one may still
//     be in use.
//
// Each Open begins a new manifest. So a manifest without a sum is read at most once.
const (
	sumName      = "manifest.sum"
	sumVersion   = 1
	sumHeadBytes = 1 + 8 + 4

	manifestPrefix = "MANIFEST-"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifestSum is the checksum of the first bytes of a manifest, with their number.
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

// parseSum parses the contents of the file sumName. whole is false if they are invalid or
// incomplete.
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
		return nil // there is no usable sum
	}
	sum, whole := parseSum(b)
	if !whole {
		return nil
	}
	found, err := pebble.Peek(dir, fs)
	if err != nil || !found.Exists || fs.PathBase(found.ManifestFilename) != sum.name {
		return nil // Pebble will report the error; a sum of another manifest is no use
	}
	f, err := fs.Open(found.ManifestFilename)
	if err != nil {
		return nil // Pebble will report the error
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

// summingFS updates the sum whenever Pebble syncs its manifest.
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

// manifest is the manifest that Pebble writes, from one goroutine at a time.
type manifest struct {
	vfs.File
	fs  vfs.FS
	dir string
	sum manifestSum // sum of all bytes written

	named bool // the name is durable
}

// Write implements vfs.File. If it fails, Pebble ends the process.
func (m *manifest) Write(p []byte) (int, error) {
	crc := crc32.Update(m.sum.crc, castagnoli, p) // before Write, which may change p
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
		_ = m.writeSum() // on an error, the earlier sum stays valid
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
