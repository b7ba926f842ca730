package resp

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parseAll parses input that arrives in pieces, as a connection does. It returns the commands as
// text, and the error that ended the parsing.
func parseAll(pieces ...[]byte) (commands []string, err error) {
	p := Parser{ArgsMax: 5, BulkBytesMax: 10}
	var buf []byte
	for _, piece := range pieces {
		buf = append(buf, piece...)
		for {
			args, n, err := p.Next(buf)
			if err != nil {
				return commands, err
			}
			if n == 0 {
				break
			}
			commands = append(commands, fmt.Sprintf("%q", args))
			buf = buf[n:]
		}
	}
	return commands, nil
}

func TestParser(t *testing.T) {
	for _, test := range []struct {
		name, in string
		want     []string
		err      string
	}{
		{"one", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", []string{`["GET" "k"]`}, ""},
		{"two", "*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n", []string{`["PING"]`, `["PING"]`}, ""},
		{"any bytes", "*1\r\n$3\r\n\r\n\x00\r\n", []string{`["\r\n\x00"]`}, ""},
		{"empty argument", "*1\r\n$0\r\n\r\n", []string{`[""]`}, ""},
		{"no arguments", "*0\r\n*-1\r\n*1\r\n$1\r\na\r\n", []string{`[]`, `[]`, `["a"]`}, ""},
		{"begun", "*2\r\n$3\r\nGET\r\n$1\r\nk", nil, ""},
		{"line", "GET  k\r\n\r\nPING\n", []string{`["GET" "k"]`, `[]`, `["PING"]`}, ""},
		{"quotes", `a "b \n\x41\" c" 'd \' \n'` + "\r\n", []string{`["a" "b \nA\" c" "d ' \\n"]`}, ""},
		{"too many arguments", "*6\r\n", nil, "invalid multibulk length"},
		{"no number", "*x\r\n", nil, "invalid multibulk length"},
		{"no number of bytes", "*1\r\n$x\r\n", nil, "invalid bulk length"},
		{"a large number", "*1\r\n$9223372036854775807\r\nabc", nil, "invalid bulk length"},
		{"a negative number", "*1\r\n$-7\r\nabcdefgh\r\n", nil, "invalid bulk length"},
		{"too long", "*1\r\n$11\r\n", nil, "invalid bulk length"},
		{"no end", "*1\r\n$1\r\nabc", nil, "invalid bulk length"},
		{"no dollar", "*1\r\n+a\r\n", nil, "expected '$', got '+'"},
		{"endless number", "*" + strings.Repeat("1", 40), nil, "too big multibulk count string"},
		{"no carriage return", "*1\n", nil, "invalid multibulk length"},
		{"open quote", "GET \"a\r\n", nil, "unbalanced quotes"},
		{"quote in a word", "GET a\"b\"\r\n", nil, "unbalanced quotes"},
		{"too many words", "a b c d e f\r\n", nil, "at most 5 arguments"},
		{"endless line", strings.Repeat("a", inlineBytesMax+1), nil, "too big inline request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, step := range []int{len(test.in), 1, 3} {
				got, err := parseAll(slices.Collect(slices.Chunk([]byte(test.in), step))...)
				if !slices.Equal(got, test.want) {
					t.Errorf("in steps of %d: %q, want %q", step, got, test.want)
				}
				if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
					t.Errorf("in steps of %d: error %v, want %q", step, err, test.err)
				}
			}
		})
	}
}

// The parsed commands do not depend on where the input is cut into pieces. A parsed command that is
// encoded again parses to the same command.
func FuzzParser(f *testing.F) {
	for _, seed := range []string{"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "GET k\r\n", "*1\r\n$-1\r\n", "a \"b\\x41\" 'c'\n*0\r\n", "*1\r\n$9223372036854775807\r\n"} {
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		whole, wholeErr := parseAll(in)
		cut, cutErr := parseAll(slices.Collect(slices.Chunk(in, int(step)+1))...)
		if !slices.Equal(whole, cut) || fmt.Sprint(wholeErr) != fmt.Sprint(cutErr) {
			t.Fatalf("whole: %q, %v; cut: %q, %v", whole, wholeErr, cut, cutErr)
		}
		p := Parser{ArgsMax: 5, BulkBytesMax: 10}
		args, n, err := p.Next(in)
		if err != nil || n == 0 {
			return
		}
		again := AppendArray(nil, len(args))
		for _, arg := range args {
			again = AppendBulk(again, arg)
		}
		want := fmt.Sprintf("%q", args)
		q := Parser{ArgsMax: 5, BulkBytesMax: inlineBytesMax}
		if args, n, err := q.Next(again); err != nil || n != len(again) || fmt.Sprintf("%q", args) != want {
			t.Fatalf("%s again: %q, %d of %d bytes, %v", want, args, n, len(again), err)
		}
	})
}

func TestNumbers(t *testing.T) {
	for _, n := range []int64{0, 1, -1, 9, 10, 1 << 40, math.MaxInt64, math.MinInt64} {
		if got, ok := ParseInt([]byte(strconv.FormatInt(n, 10))); !ok || got != n {
			t.Errorf("%d: %d, %v", n, got, ok)
		}
	}
	for _, text := range []string{"", "-", "+1", "01", "-0", "-01", " 1", "1 ", "1.0", "0x1", "9223372036854775808", "-9223372036854775809", "99999999999999999999", "1e3"} {
		if n, ok := ParseInt([]byte(text)); ok {
			t.Errorf("%q is %d", text, n)
		}
	}
}

// Shrink releases the memory of an executed command with many arguments.
func TestShrink(t *testing.T) {
	p := Parser{ArgsMax: 4 * argsKept, BulkBytesMax: 10}
	if args, _, err := p.Next([]byte("*1000\r\n" + strings.Repeat("$1\r\na\r\n", 1000))); err != nil || len(args) != 1000 {
		t.Fatal(len(args), err)
	}
	p.Shrink()
	if max(cap(p.args), cap(p.spans)) > argsKept {
		t.Errorf("memory of %d and %d arguments is kept", cap(p.args), cap(p.spans))
	}
}
