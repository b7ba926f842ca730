package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/docker/go-units"
)

// sizeFlag is a number of bytes, such as 512MiB or 4g; 0 for none.
type sizeFlag struct{ bytes *uint64 }

func (f sizeFlag) Type() string   { return "SIZE" }
func (f sizeFlag) String() string { return units.BytesSize(float64(*f.bytes)) }

func (f sizeFlag) Set(text string) error {
	n, err := units.RAMInBytes(text)
	if err != nil || n < 0 {
		return errors.New("want a number of bytes, such as 512MiB or 4g")
	}
	*f.bytes = uint64(n)
	return nil
}

// errNoShare is returned for a text that is neither a share nor a size.
var errNoShare = errors.New("want 1% to 100%, or a number of bytes such as 4GiB")

// memoryShare is a flag for a bound on memory: a size, or a share of the machine's memory such as
// 80%. The method limit converts it to bytes.
type memoryShare struct {
	percent uint64 // per cent of the machine's memory, if not 0
	bytes   uint64
}

func (s *memoryShare) Type() string { return "SIZE|N%" }

func (s *memoryShare) String() string {
	if s.percent > 0 {
		return fmt.Sprintf("%d%%", s.percent)
	}
	return sizeFlag{&s.bytes}.String()
}

func (s *memoryShare) Set(text string) error {
	number, isShare := strings.CutSuffix(text, "%")
	if !isShare {
		s.percent = 0
		if err := (sizeFlag{&s.bytes}).Set(text); err != nil {
			return errNoShare
		}
		return nil
	}
	percent, err := strconv.ParseUint(number, 10, 8)
	if err != nil || percent < 1 || percent > 100 {
		return errNoShare
	}
	s.percent, s.bytes = percent, 0
	return nil
}

// limit returns the limit in bytes, 0 for none. It refuses a limit above the machine's memory,
// which machine returns. If that memory is unknown, limit accepts any size, but no share.
func (s *memoryShare) limit(machine memlimit.Provider) (uint64, error) {
	most, err := machine()
	switch {
	case s.percent > 0 && err != nil:
		return 0, fmt.Errorf("the machine's memory is unknown; give --memory-limit in bytes: %w", err)
	case s.percent > 0:
		return most / 100 * s.percent, nil
	case err == nil && s.bytes > most:
		return 0, fmt.Errorf("%d bytes are more than this machine has, or its control group may use, %d (%s); give less, or a share such as 80%%",
			s.bytes, most, units.BytesSize(float64(most)))
	}
	return s.bytes, nil
}

// machineMemory returns the bytes of memory that the process may use: the machine's, or its
// control group's if that has a lower limit.
func machineMemory() (uint64, error) { return leastOf(memlimit.FromSystem, memlimit.FromCgroup) }

func leastOf(limits ...memlimit.Provider) (uint64, error) {
	least, problem := uint64(math.MaxUint64), error(nil)
	for _, limit := range limits {
		if n, err := limit(); err != nil {
			problem = err
		} else {
			least = min(least, n)
		}
	}
	if least < math.MaxUint64 {
		return least, nil
	}
	return 0, problem
}
