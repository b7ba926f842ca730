package api

import (
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"
)

// This file serves those who compare counts with a truth of their own: what a source has
// counted, rows with where their shards were, and corrections.

// pastOfSource serves POST /v1/sources/{source}/past.
func pastOfSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	keyspace, partition, from, err := r.decodePast(ctx.Request.Body())
	if err != nil {
		return err
	}
	until, cancel := r.until()
	defer cancel()
	past, err := s.cfg.Sources.Past(until, string(r.name), keyspace, partition, from)
	if err != nil {
		return err
	}
	return answerJSON(ctx, past)
}

// decodePast reads {"keyspace":"posts","partition":0,"from":700}.
func (r *request) decodePast(body []byte) (keyspace string, partition uint32, from string, err error) {
	err = r.allMembers(body, []string{"keyspace", "partition", "from"}, func(c *cursor, member int) {
		switch member {
		case 0:
			keyspace = c.name("keyspace")
		case 1:
			number, err := strconv.ParseUint(string(c.Number()), 10, 32)
			if err != nil {
				c.Fail("partition", "not the number of a partition")
			}
			partition = uint32(number)
		case 2:
			from = c.position("from")
		}
	})
	return keyspace, partition, from, err
}

// sourceIDsMax bounds the ids of one rowsOfSource: it costs two log entries in each shard, however
// many rows it reads.
const sourceIDsMax = 10_000

// rowsOfSource serves POST /v1/sources/{source}/rows.
func rowsOfSource(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	keyspace, err := r.decodeSourceRows(ctx.Request.Body())
	if err != nil {
		return err
	}
	until, cancel := r.until()
	defer cancel()
	rows, err := s.cfg.Sources.Rows(until, string(r.name), keyspace, r.ids)
	if err != nil {
		return err
	}
	return answerJSON(ctx, rows)
}

// decodeSourceRows reads {"keyspace":"posts","ids":[…]} into r.ids.
func (r *request) decodeSourceRows(body []byte) (keyspace string, err error) {
	err = r.allMembers(body, []string{"keyspace", "ids"}, func(c *cursor, member int) {
		if member == 0 {
			keyspace = c.name("keyspace")
		} else {
			r.decodeIDs(0, sourceIDsMax)
		}
	})
	return keyspace, err
}

// correct serves POST /v1/counters/{keyspace}/correct: incr, counted as a correction.
func correct(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	if err := s.change(ctx, r, changeAdd); err != nil {
		return err
	}
	if !r.write.Duplicate {
		s.metrics.Corrected(&r.write, r.keyspace.Name)
	}
	return nil
}

// position reads a position: a number or a string.
func (c *cursor) position(field string) (text string) {
	if c.Peek() == '"' {
		text = string(c.Str())
	} else {
		text = string(c.Number())
	}
	if text == "" {
		c.Fail(field, fmt.Sprintf("not a position: a number, or a string such as %q", "1-2"))
	}
	return text
}
