package redis

import (
	"bytes"
	"fmt"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/dedup"
)

// sessionRefusal returns why the session cannot number another write, or "".
func (c *conn) sessionRefusal() string {
	switch {
	case c.once.Unsure:
		return errSessionUnsure
	case c.once.Writes >= dedup.SessionWritesMax:
		return errSessionFull
	}
	return ""
}

const errSessionUnsure = "ERR a command of this session is unknown, so the writes behind it have no certain number; begin another with COUNTD.SESSION"

var errSessionFull = fmt.Sprintf("ERR a session has at most %d writes; begin another with COUNTD.SESSION", dedup.SessionWritesMax)

// countdSession starts or ends a session.
func countdSession(c *conn, args [][]byte) {
	if len(args) == 2 && bytes.EqualFold(args[1], []byte("end")) {
		c.once = dedup.Session{}
		c.ok()
		return
	}
	if len(args) != 3 {
		c.refuse(wrongArity("countd.session"))
		return
	}
	name := args[1]
	if len(name) < 1 || len(name) > dedup.SessionNameMax || bytes.IndexByte(name, 0) >= 0 {
		c.refuse(fmt.Sprintf("ERR producer: 1 to %d bytes, none of them 0", dedup.SessionNameMax))
		return
	}
	seq, ok := strictjson.ParseUint64(args[2])
	if !ok || seq > dedup.SessionSeqMax {
		c.refuse(fmt.Sprintf("ERR seq: not a number of 0 to %d", uint64(dedup.SessionSeqMax)))
		return
	}
	c.once = dedup.Session{Name: bytes.Clone(name), Seq: seq}
	c.ok()
}
