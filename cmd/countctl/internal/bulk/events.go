package bulk

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/countd/countd/client"
)

// increment is the increment that one record describes.
type increment struct {
	id      client.ID
	deltas  client.Counts // empty if the record changes no column
	seconds float64       // time of the event in the file; 0 if times are not read, NaN if the time is invalid
}

// incrementParser parses records into increments. It keeps no reference to the record.
type incrementParser interface {
	increment(record []string) (increment, error)
}

// increment parses a record whose columns are deltas.
func (p *rowParser) increment(record []string) (increment, error) {
	id, cells, err := p.parse(record)
	if err != nil {
		return increment{}, err
	}
	cells = slices.DeleteFunc(cells, func(c client.Count) bool { return c.Value == 0 || slices.Contains(p.gone, c.Column) })
	return increment{id: id, deltas: cells}, nil
}

// EventColumns holds the names of a file's columns for the event and its time.
type EventColumns struct {
	Event string `json:"event"`
	Time  string `json:"time"`
}

// eventParser parses each event into one increment.
type eventParser struct {
	in              *CSVReader
	id, time, event int               // indexes of the fields in a record
	timed           bool              // a row without a valid time is rejected
	paced           bool              // the parser reads the time
	counters        map[string]string // column of each event; "" if the event changes no column
	ids             IDParsers
}

// newEventParser returns a parser for the columns that cfg.From names. It returns an error if the
// header of the file lacks one of them. Whether a row without a time is bad depends on the session,
// not on the speed of this run. If it depended on the speed, two runs could disagree about bad rows
// and so cut the file differently.
func newEventParser(in *CSVReader, cfg *FileConfig) (*eventParser, error) {
	about := cfg.From
	timed := about.Session.TickSeconds > 0 // the session began with a --speed other than max, so batches are cut by time
	p := &eventParser{in: in, timed: timed, paced: timed || cfg.Speed > 0, counters: map[string]string{}, ids: cfg.IDs}
	for _, m := range about.Columns {
		p.counters[m.File] = m.Counter
		if slices.Contains(cfg.Gone, m.Counter) {
			p.counters[m.File] = ""
		}
	}
	var err error
	if p.id, err = findColumn(in, about.IDColumn, "--id-column"); err != nil {
		return nil, err
	}
	if p.event, err = findColumn(in, about.Events.Event, "--event-column"); err != nil {
		return nil, err
	}
	if p.paced {
		p.time, err = findColumn(in, about.Events.Time, "--time-column")
	}
	return p, err
}

func (p *eventParser) increment(record []string) (increment, error) {
	id, err := p.ids.row(record[p.id])
	if err != nil {
		return increment{}, p.in.Bad("id: %v", err)
	}
	inc := increment{id: id}
	if p.paced {
		inc.seconds, err = strconv.ParseFloat(record[p.time], 64)
		if err != nil || math.IsInf(inc.seconds, 0) {
			inc.seconds = math.NaN()
		}
		if p.timed && math.IsNaN(inc.seconds) {
			return increment{}, p.in.Bad("%q is not a time in seconds", record[p.time])
		}
	}
	counter, mapped := p.counters[record[p.event]]
	if !mapped {
		return increment{}, p.in.Bad("no column counts the event %q", record[p.event])
	}
	if counter != "" {
		inc.deltas = client.Counts{{Column: counter, Value: 1}}
	}
	return inc, nil
}

// paceSecondsMax bounds a wait, so that an event in the far future does not overflow a
// Duration.
const paceSecondsMax = 100 * 365 * 24 * 3600

// pace delays events until they are due.
type pace struct {
	speed float64 // multiple of real time; 0 to not wait
	began time.Time
	first float64
}

// wait waits until an event is due, relative to the first one, or until ctx ends. An event
// whose time is NaN is due at once.
func (p *pace) wait(ctx context.Context, at float64) error {
	if p.speed == 0 || math.IsNaN(at) {
		return nil
	}
	if p.began.IsZero() {
		p.began, p.first = time.Now(), at
	}
	seconds := min((at-p.first)/p.speed, paceSecondsMax)
	left := time.Until(p.began.Add(time.Duration(seconds * float64(time.Second))))
	if left <= 0 {
		return nil
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
