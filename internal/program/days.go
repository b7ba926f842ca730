package program

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// DurationFlag is a flag for a duration. The format is that of time.ParseDuration, but may begin
// with a number of days, such as 180d or 1d12h.
type DurationFlag struct{ D *time.Duration }

// Type returns the kind of value for a program's help.
func (f DurationFlag) Type() string { return "duration" }

// String returns the current duration in the format of time.Duration.
func (f DurationFlag) String() string { return f.D.String() }

// Set parses a duration.
func (f DurationFlag) Set(text string) error {
	days, rest, has := strings.Cut(text, "d")
	if !has {
		days, rest = "0", text
	}
	n, err := strconv.ParseUint(days, 10, 16) // 16 bits, because 65,535 days fit into a Duration
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 180d, 12h or 30s", text)
	}
	d := time.Duration(0)
	if rest != "" || !has {
		if d, err = time.ParseDuration(rest); err != nil || has && d < 0 {
			return fmt.Errorf("%q is not a duration such as 180d, 12h or 30s", text)
		}
	}
	*f.D = time.Duration(n)*24*time.Hour + d
	return nil
}
