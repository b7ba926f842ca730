// Package resp parses the commands of the Redis protocol and appends its replies, RESP2 and RESP3.
// It owns the bytes on the wire, and the buffers and the deadlines of a connection. It also matches
// the patterns of MATCH. It never executes a command, and knows no command by name.
//
// Invariant: whatever a client sends, the parser takes no more memory than its bounds, and visits
// each byte once. Beyond its free part, a connection reserves memory from a budget that all
// connections share.
package resp

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/countd/countd/internal/strictjson"
)

// ProtocolError is an error that ends the connection, because the parser no longer knows where
// the next command begins.
type ProtocolError string

func (e ProtocolError) Error() string { return "ERR Protocol error: " + string(e) }

const (
	// lengthBytesMax bounds a line that has a length: a sign and 20 digits.
	lengthBytesMax = 32
	// inlineBytesMax bounds a command on a plain line.
	inlineBytesMax = 64 << 10
	// argsKept is the number of arguments for which an idle connection keeps memory, 32 bytes each.
	argsKept = 256
)

// Parser parses commands from the front of a buffer. It keeps its position in a command
// that has not arrived completely, so it visits each byte once:
//
//	*2\r\n $3\r\n GET\r\n $8\r\n posts:1:\r\n      want 2, then 2 spans
//	GET posts:1:like\r\n                           the same as a plain line
//
// Positions are relative to the command's first byte.
type Parser struct {
	ArgsMax, BulkBytesMax int

	begun bool   // the head of the current command was parsed, so want and spans are valid
	want  int    // number of arguments, as the head states it
	spans []span // the arguments that were parsed
	at    int    // index of the first byte that was not parsed yet

	args [][]byte // memory of the previous command's arguments
}

type span struct{ from, to int32 } // positions in a command, which is far smaller than 2 GiB

// Next returns the arguments of the command at the front of b and its size in bytes. The
// size is 0 until the command has arrived completely. The arguments alias b, and the
// slice is valid until the next call. A command may have no arguments; Redis ignores such
// commands.
func (p *Parser) Next(b []byte) (args [][]byte, n int, err error) {
	if len(b) == 0 {
		return nil, 0, nil
	}
	if !p.begun {
		if b[0] != '*' {
			return p.inline(b)
		}
		count, after, err := length(b, 1, "multibulk")
		if err != nil || after == 0 {
			return nil, 0, err
		}
		if count > int64(p.ArgsMax) {
			return nil, 0, ProtocolError(fmt.Sprintf("invalid multibulk length: a command has at most %d arguments", p.ArgsMax))
		}
		p.begun, p.want, p.at, p.spans = true, int(max(count, 0)), after, p.spans[:0]
	}
	for len(p.spans) < p.want {
		more, err := p.bulk(b)
		if err != nil || more {
			return nil, 0, err
		}
	}
	p.begun = false
	p.args = slices.Grow(p.args[:0], len(p.spans))
	for _, s := range p.spans {
		p.args = append(p.args, b[s.from:s.to])
	}
	return p.args, p.at, nil
}

// Shrink releases the memory of an executed command with many arguments.
func (p *Parser) Shrink() {
	if cap(p.args) > argsKept {
		p.args = nil
	}
	if !p.begun && cap(p.spans) > argsKept {
		p.spans = nil
	}
}

// Forget releases the arguments of the last command, which alias its buffer.
func (p *Parser) Forget() { p.args = nil }

// bulk parses one argument, or reports that it needs more bytes.
func (p *Parser) bulk(b []byte) (more bool, err error) {
	if p.at == len(b) {
		return true, nil
	}
	if b[p.at] != '$' {
		return false, ProtocolError(fmt.Sprintf("expected '$', got '%c'", b[p.at]))
	}
	size, after, err := length(b, p.at+1, "bulk")
	if err != nil || after == 0 {
		return true, err
	}
	if size < 0 || size > int64(p.BulkBytesMax) {
		return false, ProtocolError(fmt.Sprintf("invalid bulk length: an argument has at most %d bytes", p.BulkBytesMax))
	}
	end := after + int(size)
	if len(b) < end+2 {
		return true, nil
	}
	if b[end] != '\r' || b[end+1] != '\n' {
		return false, ProtocolError("invalid bulk length")
	}
	p.spans = append(p.spans, span{int32(after), int32(end)})
	p.at = end + 2
	return false, nil
}

// length parses a number and the end of its line. nextLine is the start of the next line, or
// 0 if the line has not arrived completely.
func length(b []byte, from int, what string) (n int64, nextLine int, err error) {
	// Nearly all lengths have one or two digits.
	if len(b) > from+3 {
		d, e := b[from]-'0', b[from+1]-'0'
		switch {
		case d <= 9 && b[from+1] == '\r' && b[from+2] == '\n':
			return int64(d), from + 3, nil
		case d-1 <= 8 && e <= 9 && b[from+2] == '\r' && b[from+3] == '\n':
			return int64(d)*10 + int64(e), from + 4, nil
		}
	}
	line := b[from:min(len(b), from+lengthBytesMax)]
	end := bytes.IndexByte(line, '\n')
	if end < 0 {
		if len(line) == lengthBytesMax {
			return 0, 0, ProtocolError("too big " + what + " count string")
		}
		return 0, 0, nil
	}
	if end < 1 || line[end-1] != '\r' {
		return 0, 0, ProtocolError("invalid " + what + " length")
	}
	n, ok := ParseInt(line[:end-1])
	if !ok {
		return 0, 0, ProtocolError("invalid " + what + " length")
	}
	return n, from + end + 1, nil
}

// inline parses a command on a plain line, as a person types it.
func (p *Parser) inline(b []byte) (args [][]byte, n int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 && len(b) < inlineBytesMax {
		return nil, 0, nil
	}
	if end < 0 || end > inlineBytesMax {
		return nil, 0, ProtocolError("too big inline request")
	}
	p.args, err = SplitLine(p.args[:0], b[:end])
	if err != nil {
		return nil, 0, err
	}
	if len(p.args) > p.ArgsMax {
		return nil, 0, ProtocolError(fmt.Sprintf("a command has at most %d arguments", p.ArgsMax))
	}
	return p.args, end + 1, nil
}

const errUnbalanced = ProtocolError("unbalanced quotes in request")

// SplitLine appends the words of a line to args. A word may be quoted; double quotes
// allow escapes.
func SplitLine(args [][]byte, line []byte) ([][]byte, error) {
	for {
		line = bytes.TrimLeft(line, " \t\r\n\v\f\x00")
		if len(line) == 0 {
			return args, nil
		}
		if line[0] != '"' && line[0] != '\'' {
			end := bytes.IndexAny(line, " \t\r\n\v\f\x00\"'")
			if end < 0 {
				return append(args, line), nil
			}
			if line[end] == '"' || line[end] == '\'' {
				return nil, errUnbalanced
			}
			args, line = append(args, line[:end]), line[end:]
			continue
		}
		word, rest, err := unquote(line)
		if err != nil {
			return nil, err
		}
		args, line = append(args, word), rest
	}
}

// unquote returns the quoted word at the front of a line, and the rest of the line.
func unquote(line []byte) (word, rest []byte, err error) {
	quote := line[0]
	word = []byte{}
	for i := 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == quote:
			rest = line[i+1:]
			if len(rest) > 0 && rest[0] != ' ' && rest[0] != '\t' && rest[0] != '\r' {
				return nil, nil, errUnbalanced
			}
			return word, rest, nil
		case c != '\\' || i+1 == len(line) || quote == '\'' && line[i+1] != '\'':
			word = append(word, c)
		case quote == '"' && line[i+1] == 'x' && i+3 < len(line) && isHex(line[i+2]) && isHex(line[i+3]):
			word = append(word, hexValue(line[i+2])<<4|hexValue(line[i+3]))
			i += 3
		default:
			i++
			word = append(word, unescaped(line[i]))
		}
	}
	return nil, nil, errUnbalanced
}

func unescaped(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

func hexValue(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// ParseInt parses a signed number in the only form that Redis accepts: no plus sign, no
// leading zeros, no spaces, no minus zero.
func ParseInt(b []byte) (int64, bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	n, ok := strictjson.ParseUint64(b)
	switch {
	case !ok || negative && n == 0:
		return 0, false
	case negative:
		return -int64(n), n <= 1<<63
	}
	return int64(n), n < 1<<63
}
