package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
)

// A connection carries calls in one direction and answers in the other. Each call or answer is a
// message: its length (4 bytes, big endian) and its bytes. Numbers are uvarints unless noted. Each
// byte string follows its length.
//
//	append:  0 | id | group | to (8 bytes, little endian) | protocol version | term
//	         | sender's id | sender's address | previous index | previous term | commit index | number of entries | entries
//	entry:   index | term | type | seconds (zigzag) | nanoseconds | data | extensions
//	call:    1 | id | method | microseconds until its deadline | request, which is the rest
//	answer:  id | 1 | success (1) | no pause (1) | opening | term | last index, to an append
//	         id | 2 | text of the error
//	         id | 3 | error (rpc.AppendError) | body, which is the rest, to a call
//	leave:   0 | 4: the node that serves the stream is closing, and takes no more calls
//	serve:   0 | 5, the first message back: the node serves the stream, and takes calls
//
// The field "to" names the addressed replica, as in a preface (see rpc.Addressee). The id
// identifies the call on its connection. The field opening counts how often the answering process
// has opened a replica, so that the sender recognises answers of a reopened replica. raft's field
// Leader is not sent, because raft reads it only if the sender's address is empty.
const (
	streamAppend = 0
	streamCall   = 1

	answerAppend = 1
	answerError  = 2
	answerCall   = 3
	answerLeave  = 4
	answerServe  = 5

	// AppendBytesMax bounds the entries of an append on a stream. It suffices for a follower that
	// keeps up. A larger append uses a separate connection, so that it delays no other group.
	AppendBytesMax = 256 << 10
	// streamMessageMax bounds a message: entries of AppendBytesMax with their overhead.
	streamMessageMax = 1 << 20
	messageHeadBytes = 4
	// methodBytesMax bounds the name of a method.
	methodBytesMax = 64
	entryBytesMin  = 7 // one byte for each field
)

// Answer is the answer to a call.
type Answer struct {
	id      uint64
	err     error  // error of the replica, or why the call did not reach it; if set, the fields below are zero
	Opening uint64 // see the field opening in the drawing above
	Term    uint64
	Last    uint64
	Success bool
	NoPause bool   // raft's NoRetryBackoff
	body    []byte // encoded error and body of the answer to a method call; nil for an append
	leave   bool   // this is a leave message, not an answer
	serve   bool   // this is a serve message, not an answer
}

// Fits reports whether an append may travel on a stream.
func Fits(args *raft.AppendEntriesRequest) bool { return appendsBytes(args) <= AppendBytesMax }

// appendsBytes estimates the size of an append without its names.
func appendsBytes(args *raft.AppendEntriesRequest) int {
	n := 0
	for _, e := range args.Entries {
		n += storage.EntryBytes(e)
	}
	return n
}

// appendMessage appends a message: a length, then the bytes that the function write appends.
func appendMessage(dst []byte, write func(dst []byte) []byte) []byte {
	start := len(dst)
	dst = write(append(dst, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-messageHeadBytes))
	return dst
}

// appendAppend encodes an append without its length.
func appendAppend(dst []byte, id uint64, group uint32, to uint64, args *raft.AppendEntriesRequest) []byte {
	dst = binary.AppendUvarint(append(dst, streamAppend), id)
	dst = binary.AppendUvarint(dst, uint64(group))
	dst = binary.LittleEndian.AppendUint64(dst, to)
	dst = binary.AppendUvarint(dst, uint64(args.ProtocolVersion))
	dst = binary.AppendUvarint(dst, args.Term)
	dst = wire.AppendBytes(dst, args.ID)
	dst = wire.AppendBytes(dst, args.Addr)
	dst = binary.AppendUvarint(dst, args.PrevLogEntry)
	dst = binary.AppendUvarint(dst, args.PrevLogTerm)
	dst = binary.AppendUvarint(dst, args.LeaderCommitIndex)
	dst = binary.AppendUvarint(dst, uint64(len(args.Entries)))
	for _, e := range args.Entries {
		dst = binary.AppendUvarint(dst, e.Index)
		dst = binary.AppendUvarint(dst, e.Term)
		dst = binary.AppendUvarint(dst, uint64(e.Type))
		dst = binary.AppendVarint(dst, e.AppendedAt.Unix())
		dst = binary.AppendUvarint(dst, uint64(e.AppendedAt.Nanosecond()))
		dst = wire.AppendBytes(dst, e.Data)
		dst = wire.AppendBytes(dst, e.Extensions)
	}
	return dst
}

// parseAppend decodes an append. The result shares b's memory.
func parseAppend(b []byte) (id uint64, group uint32, to uint64, args *raft.AppendEntriesRequest, err error) {
	r := wire.Reader{Rest: b}
	r.UintTo(streamAppend)
	id = r.Uint()
	group = uint32(r.UintTo(1<<32 - 1))
	to = r.Fixed64()
	args = &raft.AppendEntriesRequest{}
	args.ProtocolVersion = raft.ProtocolVersion(r.UintTo(1 << 16))
	args.Term = r.Uint()
	args.ID, args.Addr = r.Bytes(), r.Bytes()
	args.PrevLogEntry, args.PrevLogTerm, args.LeaderCommitIndex = r.Uint(), r.Uint(), r.Uint()
	n := r.Count(entryBytesMin)
	if n > 0 {
		args.Entries = make([]*raft.Log, n)
		entries := make([]raft.Log, n)
		for i := range entries {
			parseEntry(&r, &entries[i])
			args.Entries[i] = &entries[i]
		}
	}
	return id, group, to, args, r.End()
}

func parseEntry(r *wire.Reader, e *raft.Log) {
	e.Index, e.Term, e.Type = r.Uint(), r.Uint(), raft.LogType(r.UintTo(255))
	seconds, nanoseconds := r.Int(), r.UintTo(uint64(time.Second-1))
	e.AppendedAt = time.Unix(seconds, int64(nanoseconds)).UTC()
	e.Data, e.Extensions = r.Bytes(), r.Bytes()
	if len(e.Data) == 0 {
		e.Data = nil
	}
	if len(e.Extensions) == 0 {
		e.Extensions = nil
	}
}

// appendStreamCall encodes a method call without its length. The argument has is the time until the
// call's deadline.
func appendStreamCall(dst []byte, id uint64, method string, has time.Duration, request []byte) []byte {
	dst = binary.AppendUvarint(append(dst, streamCall), id)
	dst = rpc.AppendText(dst, method, methodBytesMax)
	dst = binary.AppendUvarint(dst, uint64(max(has, 0)/time.Microsecond))
	return append(dst, request...)
}

// parseStreamCall decodes a method call. The result shares b's memory.
func parseStreamCall(b []byte) (id uint64, method string, has time.Duration, request []byte, err error) {
	r := wire.Reader{Rest: b}
	if kind := r.UintTo(streamCall); kind != streamCall {
		r.Fail("another kind of call")
	}
	id, method = r.Uint(), string(r.Bytes())
	has = time.Duration(r.UintTo(uint64(rpc.CallTimeoutMax/time.Microsecond))) * time.Microsecond
	return id, method, has, r.Rest, r.Err
}

// appendCallAnswer encodes the answer to a method call without its length.
func appendCallAnswer(dst []byte, id uint64, body []byte, err error) []byte {
	dst = append(binary.AppendUvarint(dst, id), answerCall)
	if dst = rpc.AppendError(dst, err); err != nil {
		return dst
	}
	return append(dst, body...)
}

// appendAnswerOf encodes a leave message, a serve message, or the answer to an append, without its
// length.
func appendAnswerOf(dst []byte, a *Answer) []byte {
	dst = binary.AppendUvarint(dst, a.id)
	if a.leave {
		return append(dst, answerLeave)
	}
	if a.serve {
		return append(dst, answerServe)
	}
	if a.err != nil {
		return rpc.AppendText(append(dst, answerError), a.err.Error(), rpc.ErrorTextMax)
	}
	dst = append(dst, answerAppend, wire.Bit(a.Success), wire.Bit(a.NoPause))
	dst = binary.AppendUvarint(dst, a.Opening)
	dst = binary.AppendUvarint(dst, a.Term)
	return binary.AppendUvarint(dst, a.Last)
}

func parseAppendAnswer(b []byte) (Answer, error) {
	r := wire.Reader{Rest: b}
	a := Answer{id: r.Uint()}
	switch kind := r.Byte(); kind {
	case answerServe:
		a.serve = true
	case answerLeave:
		a.leave = true
	case answerCall:
		if a.body, r.Rest = r.Rest, nil; len(a.body) == 0 {
			r.Fail("an answer")
		}
	case answerError:
		text := r.Bytes()
		if len(text) > rpc.ErrorTextMax {
			r.Fail("a long error")
		}
		a.err = errors.New(string(text))
	case answerAppend:
		a.Success, a.NoPause = r.Bool(), r.Bool()
		a.Opening, a.Term, a.Last = r.Uint(), r.Uint(), r.Uint()
	default:
		r.Fail(fmt.Sprintf("an answer of kind %d", kind))
	}
	return a, r.End()
}

// messageBytes decodes the length of a message, and refuses more than streamMessageMax.
func messageBytes(head []byte) (int, error) {
	n := binary.BigEndian.Uint32(head)
	if n > streamMessageMax {
		return 0, fmt.Errorf("%w: %d bytes", wire.ErrBadMessage, n)
	}
	return int(n), nil
}
