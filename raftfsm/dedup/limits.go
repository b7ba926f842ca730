package dedup

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/countd/countd/raftfsm/codec"
)

// Limits bound the request memory of a group. Entries contain them together with the leader's time,
// so that all replicas forget the same records at the same index.
type Limits struct {
	// KeyHorizon is the shortest time for which the group remembers a key. The group refuses a key
	// that contains an older time (UUIDv7).
	KeyHorizon time.Duration
	// KeysMax bounds the number of keys. At the bound, the group refuses new keys.
	KeysMax int
	// ProducerIdle is how long the group remembers a producer after its last request.
	ProducerIdle time.Duration
	// ProducersMax bounds the number of producers. At the bound, a new producer evicts the least
	// recently used one.
	ProducersMax int
}

const (
	// KeysMaxMax bounds the memory of a shard: 360 MB.
	KeysMaxMax = 4_000_000
	// KeysOfSection bounds the keys of a section of a snapshot. Programs of cluster version 1 write
	// and read one section, so they refuse a higher KeysMax.
	KeysOfSection = 500_000
	// ProducersMaxMax exists because a snapshot has all producers in one section.
	ProducersMaxMax = 200_000
	HorizonMax      = 30 * 24 * time.Hour
)

// Check returns an error if a limit is out of bounds.
func (l *Limits) Check() error {
	switch {
	case l.KeyHorizon < time.Millisecond || l.KeyHorizon > HorizonMax:
		return fmt.Errorf("key horizon %v is not in 1ms…%v", l.KeyHorizon, HorizonMax)
	case l.ProducerIdle < time.Millisecond || l.ProducerIdle > HorizonMax:
		return fmt.Errorf("producer idle time %v is not in 1ms…%v", l.ProducerIdle, HorizonMax)
	case l.KeysMax < 1 || l.KeysMax > KeysMaxMax:
		return fmt.Errorf("%d keys are not 1…%d", l.KeysMax, KeysMaxMax)
	case l.ProducersMax < 1 || l.ProducersMax > ProducersMaxMax:
		return fmt.Errorf("%d producers are not 1…%d", l.ProducersMax, ProducersMaxMax)
	}
	return nil
}

// AppendClock appends the section with the leader's time and the limits, which hold for the
// following requests of the entry. It must precede every request with an identity.
func AppendClock(dst []byte, now time.Time, l Limits) []byte {
	dst = append(dst, codec.SectionClock, codec.ClockSize, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(now.UnixMilli()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(l.KeyHorizon.Milliseconds()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(l.ProducerIdle.Milliseconds()))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(l.KeysMax))
	return binary.LittleEndian.AppendUint32(dst, uint32(l.ProducersMax))
}

// ParseClock parses the section that AppendClock wrote. It returns the leader's time, in Unix
// milliseconds, and the limits.
func ParseClock(p []byte) (now int64, l Limits, err error) {
	if len(p) != codec.ClockSize {
		return 0, l, fmt.Errorf("%w: clock of %d bytes", codec.ErrEntry, len(p))
	}
	ms := func(at int) time.Duration {
		return time.Duration(min(binary.LittleEndian.Uint64(p[at:]), uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond
	}
	now = int64(binary.LittleEndian.Uint64(p))
	l.KeyHorizon, l.ProducerIdle = ms(8), ms(16)
	l.KeysMax, l.ProducersMax = int(binary.LittleEndian.Uint32(p[24:])), int(binary.LittleEndian.Uint32(p[28:]))
	if now < 0 {
		return 0, l, fmt.Errorf("%w: time %d", codec.ErrEntry, now)
	}
	if err := l.Check(); err != nil {
		return 0, l, fmt.Errorf("%w: %w", codec.ErrEntry, err)
	}
	return now, l, nil
}
