package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// The format of a snapshot's file; integers are little endian:
//
//	┌────────────────┬────────────┬──────┬───────────────┬─────────────────┬───────┐
//	│ magic "CSN" 01 │ head bytes │ head │ CRC32C so far │ the FSM's bytes │ CRC64 │
//	│    4 bytes     │  4 bytes   │      │    4 bytes    │                 │   8   │
//	└────────────────┴────────────┴──────┴───────────────┴─────────────────┴───────┘
//
// The head has index, term and configuration index (8 bytes each). Each server follows with its
// suffrage (1 byte), id and address. A length of 8 bytes precedes each id and address. CRC64
// (ECMA) covers all bytes before it.
const (
	snapFrameBytes = 4 + 4 + 4 // magic and length before the head, CRC32C after it
	snapFixedBytes = 3 * 8     // size of the head, before the servers
	snapTailBytes  = 8
	// snapHeadBytesMax bounds the memory that a damaged length can cost. A group has few servers,
	// so a valid head is far smaller.
	snapHeadBytesMax = 1 << 20
)

var (
	snapMagic = [4]byte{'C', 'S', 'N', 1}
	snapSums  = crc64.MakeTable(crc64.ECMA)
)

// appendSnapHead appends the part of the file in front of the FSM's bytes.
func appendSnapHead(b []byte, meta *raft.SnapshotMeta) []byte {
	begin := len(b)
	b = binary.LittleEndian.AppendUint32(append(b, snapMagic[:]...), 0)
	b = binary.LittleEndian.AppendUint64(b, meta.Index)
	b = binary.LittleEndian.AppendUint64(b, meta.Term)
	b = binary.LittleEndian.AppendUint64(b, meta.ConfigurationIndex)
	for _, s := range meta.Configuration.Servers {
		b = append(b, byte(s.Suffrage))
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(s.ID))), s.ID...)
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(s.Address))), s.Address...)
	}
	binary.LittleEndian.PutUint32(b[begin+4:], uint32(len(b)-begin-8))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[begin:], castagnoli))
}

// readSnapHead decodes the output of appendSnapHead at the beginning of a file of fileBytes bytes.
// The returned Size is the number of the FSM's bytes.
func readSnapHead(r io.Reader, name snapName, fileBytes int64) (*raft.SnapshotMeta, error) {
	head := make([]byte, 8, 256)
	if err := readFull(r, head); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[4:])
	if [4]byte(head[:4]) != snapMagic || n < snapFixedBytes || n > snapHeadBytesMax {
		return nil, fmt.Errorf("%w: it does not begin like a snapshot", ErrDamaged)
	}
	head = append(head, make([]byte, n+4)...)
	if err := readFull(r, head[8:]); err != nil {
		return nil, err
	}
	covered, sum := head[:8+n], binary.LittleEndian.Uint32(head[8+n:])
	if crc32.Checksum(covered, castagnoli) != sum {
		return nil, fmt.Errorf("%w: the checksum of its head differs", ErrDamaged)
	}
	b := covered[8:]
	meta := &raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: name.String(), Size: fileBytes - int64(n) - snapFrameBytes - snapTailBytes,
		Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[8:]), ConfigurationIndex: binary.LittleEndian.Uint64(b[16:]),
	}
	if meta.Index != name.index || meta.Term != name.term || meta.Size < 0 {
		return nil, fmt.Errorf("%w: its head is of another snapshot, or its end is missing", ErrDamaged)
	}
	for b = b[snapFixedBytes:]; len(b) > 0; {
		s := raft.Server{Suffrage: raft.ServerSuffrage(b[0])}
		id, rest, ok := cutString(b[1:])
		address, rest, ok2 := cutString(rest)
		if !ok || !ok2 {
			return nil, fmt.Errorf("%w: a member in its head is cut short", ErrDamaged)
		}
		s.ID, s.Address, b = raft.ServerID(id), raft.ServerAddress(address), rest
		meta.Configuration.Servers = append(meta.Configuration.Servers, s)
	}
	return meta, nil
}

// cutString returns the length-prefixed string at the beginning of b, and the bytes after it.
func cutString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 8 {
		return "", nil, false
	}
	n := binary.LittleEndian.Uint64(b)
	if b = b[8:]; n > uint64(len(b)) {
		return "", nil, false
	}
	return string(b[:n]), b[n:], true
}

// readFull fills b. If r ends before b is full, it returns ErrDamaged.
func readFull(r io.Reader, b []byte) error {
	_, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	return err
}

// snapFile is the open file of a snapshot. Its head is verified.
type snapFile struct {
	vfs.File
	meta  *raft.SnapshotMeta
	bytes int64 // size of the file
}

func openSnapFile(fs vfs.FS, path string, name snapName) (*snapFile, error) {
	file, err := fs.Open(path, vfs.SequentialReadsOption)
	if err != nil {
		return nil, err
	}
	f := &snapFile{File: file}
	info, err := file.Stat()
	if err == nil {
		f.bytes = info.Size()
		f.meta, err = readSnapHead(io.NewSectionReader(file, 0, f.bytes), name, f.bytes)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// state returns a reader of the FSM's bytes.
func (f *snapFile) state() io.Reader {
	return io.NewSectionReader(f, f.bytes-snapTailBytes-f.meta.Size, f.meta.Size)
}

// verify reads the whole file and compares its checksum. It stops when check returns an error.
func (f *snapFile) verify(check func() error) error {
	sum := crc64.New(snapSums)
	covered := f.bytes - snapTailBytes
	n, err := io.CopyBuffer(sum, interruptible{io.NewSectionReader(f, 0, covered), check}, make([]byte, snapBufferBytes))
	if err == nil && n < covered {
		err = fmt.Errorf("%w: it is cut short", ErrDamaged)
	}
	if err != nil {
		return err
	}
	var tail [snapTailBytes]byte
	if err := readFull(io.NewSectionReader(f, covered, snapTailBytes), tail[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint64(tail[:]) != sum.Sum64() {
		return fmt.Errorf("%w: its checksum differs", ErrDamaged)
	}
	return nil
}

// interruptible is a reader that calls check before each read and returns its error.
type interruptible struct {
	io.Reader
	check func() error
}

func (r interruptible) Read(p []byte) (int, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
