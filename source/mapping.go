package source

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/source/sink"
)

// These are the indexes of an op's parts in mapping.parts and Decoder.raw.
const (
	mapKeyspace = iota
	mapID
	mapColumn
	mapValue
	mapMember
	mapIf
	mapUnless
	mapSlots
)

// part describes one part of an op: a path into the message or, if path is empty, a constant.
type part struct {
	field string // name of the configuration field
	path  string // $.a.b
	text  string // a constant keyspace or column
	id    uint64 // a constant id, or member
	value int64  // a constant value; for an op with a member, 1 if the member joins
}

// mapping is a compiled Mapping.
type mapping struct {
	parts  [mapSlots]part
	kind   sink.OpKind
	user   bool
	member bool
	root   *pathNode
}

// pathNode is a node of the tree of all paths of a mapping.
type pathNode struct {
	key      string
	slot     int // slot of the part whose path ends at this node, or -1
	children []*pathNode
}

// compileMap compiles a mapping and checks it.
func compileMap(m *Mapping, format string) (*mapping, error) {
	out := &mapping{root: &pathNode{slot: -1}}
	out.parts[mapKeyspace] = part{field: "keyspace", text: m.Keyspace}
	out.parts[mapID] = part{field: "id", text: m.ID}
	out.parts[mapColumn] = part{field: "column", text: m.Column}
	out.parts[mapValue] = part{field: "add", text: m.Add}
	switch {
	case m.User != "" && m.Keyspace != "":
		return nil, bad("map.keyspace", "not with user, which is of keyspace unread")
	case m.User != "" && m.ID != "":
		return nil, bad("map.user", "not with id")
	case m.Add != "" && m.Set != "":
		return nil, bad("map.set", "not with add")
	case m.Set != "" && (format == FormatDebezium || m.User != ""):
		return nil, bad("map.set", "neither with format debezium nor with user")
	case m.Member != "" && m.User != "":
		return nil, bad("map.member", "not with user: unread numbers have none")
	case m.Member != "" && m.Add != "":
		return nil, bad("map.add", "not with member, which changes the count by itself")
	}
	if m.Member != "" {
		out.member = true
		out.parts[mapMember] = part{field: "member", text: m.Member}
	}
	if m.User != "" {
		out.user = true
		out.parts[mapKeyspace].text = unread
		out.parts[mapID] = part{field: "user", text: m.User}
	}
	if m.Set != "" || m.Member != "" {
		out.kind = sink.Set
		out.parts[mapValue] = part{field: "set", text: m.Set}
	}
	out.parts[mapIf] = part{field: "if", text: m.If}
	out.parts[mapUnless] = part{field: "unless", text: m.Unless}
	for slot := range out.parts {
		switch {
		case slot == mapMember && !out.member, slot == mapValue && out.member && format == FormatDebezium:
			continue
		case slot == mapIf && m.If == "", slot == mapUnless && m.Unless == "":
			continue
		}
		if err := out.compile(slot); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// compile parses a part's text in the configuration: a path, or a constant.
func (m *mapping) compile(slot int) error {
	p := &m.parts[slot]
	field := "map." + p.field
	if p.text == "" {
		return bad(field, "missing")
	}
	if strings.HasPrefix(p.text, "$") {
		p.path = p.text
		return m.root.add(field, p.path, slot)
	}
	var ok bool
	switch slot {
	case mapID, mapMember:
		if p.id, ok = strictjson.ParseUint64([]byte(p.text)); !ok {
			return bad(field, "neither a path such as $.id nor %s", strings.TrimPrefix(strictjson.NotUint64, "not "))
		}
	case mapValue:
		if m.member {
			if p.text != "true" && p.text != "false" {
				return bad(field, "neither true, false nor a path such as $.liked")
			}
			p.value = joins(p.text == "true")
			return nil
		}
		var err error
		if p.value, err = strconv.ParseInt(p.text, 10, 64); err != nil {
			return bad(field, "neither a path such as $.n nor %s", strings.TrimPrefix(strictjson.NotInt64, "not "))
		}
	case mapIf, mapUnless:
		return bad(field, "not a path such as $.visible")
	}
	return nil
}

// joins returns the value of an op with a member: 1 if the member joins, 0 if it leaves.
func joins(set bool) int64 {
	if set {
		return 1
	}
	return 0
}

// add adds a path to the tree.
func (n *pathNode) add(field, path string, slot int) error {
	const stepsMax = 16
	steps := strings.Split(path, ".")
	if steps[0] != "$" || len(steps) < 2 || len(steps) > stepsMax+1 {
		return bad(field, "not a path of 1 to %d names, such as $.post.id", stepsMax)
	}
	for _, step := range steps[1:] {
		if step == "" || strings.ContainsAny(step, "[]*?@()'\" ") {
			return bad(field, "%q is not a plain name; a path has names only, such as $.post.id", shown(step))
		}
		if n.slot >= 0 {
			return bad(field, "it continues the path of another field")
		}
		n = n.child(step)
	}
	if n.slot >= 0 || len(n.children) > 0 {
		return bad(field, "it is, or begins, the path of another field")
	}
	n.slot = slot
	return nil
}

// child returns the child for key, and adds it if it is missing.
func (n *pathNode) child(key string) *pathNode {
	if c := n.find([]byte(key)); c != nil {
		return c
	}
	c := &pathNode{key: key, slot: -1}
	n.children = append(n.children, c)
	return c
}

func (n *pathNode) find(key []byte) *pathNode {
	for _, c := range n.children {
		if c.key == string(key) {
			return c
		}
	}
	return nil
}

// walk reads the value at the cursor, and stores the values at the paths below n in raw.
func (n *pathNode) walk(c *strictjson.Cursor, raw [][]byte) {
	if len(n.children) == 0 || !c.Begin('{') {
		if isNull(c.Skip()) {
			n.setNull(raw)
		}
		return
	}
	found := uint64(0)
	for i := 0; c.Next(i, '}'); i++ {
		key := c.Key()
		at := -1
		for j, child := range n.children {
			if child.key == string(key) {
				at = j
			}
		}
		if at < 0 {
			c.Skip()
			continue
		}
		child := n.children[at]
		if found&(1<<at) != 0 {
			c.Fail(child.key, strictjson.GivenTwice)
		}
		found |= 1 << at
		if child.slot >= 0 {
			raw[child.slot] = c.Skip()
			continue
		}
		child.walk(c, raw)
	}
}

// setNull stores null for all paths below n.
func (n *pathNode) setNull(raw [][]byte) {
	for _, child := range n.children {
		if child.slot >= 0 {
			raw[child.slot] = []byte("null")
		}
		child.setNull(raw)
	}
}

// mapped reads a message of any JSON structure through the mapping.
func (d *Decoder) mapped(value []byte) error {
	if len(value) == 0 {
		return errors.New("empty: an object is needed")
	}
	if err := d.find(value); err != nil {
		return err
	}
	if counts, err := d.counts(); err != nil || !counts {
		return err
	}
	r, err := d.row()
	if err == nil {
		d.addRow(r, r.value)
	}
	return err
}

// row has the parsed parts of an op.
type row struct {
	keyspace, column string
	id, member       uint64
	idText           spelling // of id
	memberText       spelling // of member
	value            int64    // for a row with a member: 1 if the member joins, 0 if it leaves
}

// find finds the parts of an op in a JSON text, and stores them in d.raw.
func (d *Decoder) find(text []byte) error {
	clear(d.raw[:])
	c := &d.cursor
	c.Reset(text)
	d.mapping.root.walk(c, d.raw[:])
	c.End()
	return c.Err
}

// counts reports whether the conditions If and Unless hold for the text that find has read.
func (d *Decoder) counts() (bool, error) {
	for _, slot := range []int{mapIf, mapUnless} {
		p := &d.mapping.parts[slot]
		raw := d.raw[slot]
		switch {
		case p.path == "":
			continue
		case raw == nil:
			return false, fmt.Errorf("%s: %s", p.path, strictjson.Missing)
		}
		is, ok := exactBool(raw)
		switch {
		case isNull(raw):
			is = false
		case !ok && slot == mapUnless: // for Unless, any other value counts as true, such as the time of a deletion, except an empty text
			is = string(raw) != `""`
		case !ok:
			return false, fmt.Errorf("%s: %s", p.path, strictjson.NotBool)
		}
		if is == (slot == mapUnless) {
			return false, nil
		}
	}
	return true, nil
}

// hasNull reports whether a part of an op is null. A row with a null part counts nothing.
func (d *Decoder) hasNull() bool {
	for slot, raw := range d.raw {
		if slot != mapIf && slot != mapUnless && raw != nil && isNull(raw) {
			return true
		}
	}
	return false
}

// row parses the parts that find has stored in d.raw.
func (d *Decoder) row() (row, error) {
	m := d.mapping
	var r row
	var err error
	if r.keyspace, err = d.text(mapKeyspace); err != nil {
		return row{}, err
	}
	if r.column, err = d.text(mapColumn); err != nil {
		return row{}, err
	}
	if r.id, r.idText, err = d.id(mapID); err != nil {
		return row{}, err
	}
	if r.member, r.memberText, err = d.id(mapMember); err != nil {
		return row{}, err
	}
	r.value = m.parts[mapValue].value
	if p := &m.parts[mapValue]; p.path != "" {
		raw := d.raw[mapValue]
		ok, set, problem := raw != nil, false, strictjson.Missing
		switch {
		case !ok:
		case m.member:
			set, ok = exactBool(raw)
			r.value, problem = joins(set), strictjson.NotBool
		default:
			r.value, ok = exactInt64(raw)
			problem = strictjson.NotInt64
		}
		if !ok {
			return row{}, fmt.Errorf("%s: %s", p.path, problem)
		}
	}
	if (r.keyspace == unread) != m.user {
		return row{}, errors.New("keyspace: rows of unread have a user, all others an id")
	}
	return r, nil
}

// spelling is the text of an id that is not plain digits, or "". number is set if it is a number too.
type spelling struct {
	text   string
	number bool
}

// id parses a part that is an id: the id or the member.
func (d *Decoder) id(slot int) (id uint64, of spelling, err error) {
	p := &d.mapping.parts[slot]
	in, err := d.within(slot)
	if err != nil || in == nil {
		return p.id, spelling{}, err
	}
	id, ok := exactUint64(in.Data)
	raw, quoted := plain(in.Data)
	if quoted && len(raw) > 0 {
		if _, digits := strictjson.ParseUint64(raw); !digits {
			return id, spelling{string(raw), ok}, nil
		}
	}
	if !ok {
		return 0, spelling{}, fmt.Errorf("%s: %s", p.path, strictjson.NotUint64)
	}
	return id, spelling{}, nil
}

// within returns a cursor over the value of a part; nil if the part is a constant.
func (d *Decoder) within(slot int) (*strictjson.Cursor, error) {
	p := &d.mapping.parts[slot]
	switch {
	case p.path == "":
		return nil, nil
	case d.raw[slot] == nil:
		return nil, fmt.Errorf("%s: %s", p.path, strictjson.Missing)
	}
	d.inner.Reset(d.raw[slot])
	return &d.inner, nil
}

// text parses a part that is a name: the keyspace or the column.
func (d *Decoder) text(slot int) (string, error) {
	p := &d.mapping.parts[slot]
	in, err := d.within(slot)
	if err != nil || in == nil {
		return p.text, err
	}
	if in.Peek() != '"' {
		return "", fmt.Errorf("%s: %s", p.path, strictjson.NotString)
	}
	name := d.name(in.Str())
	if name == "" {
		return "", fmt.Errorf("%s: empty", p.path)
	}
	return name, nil
}

// addRow appends the op of a row.
func (d *Decoder) addRow(r row, value int64) {
	kind := d.mapping.kind
	if d.mapping.member {
		kind = sink.Leave
		if value > 0 {
			kind = sink.Join
		}
		value = int64(r.member)
	}
	d.cells = append(room(d.cells, 1), sink.Cell{Column: r.column, Value: value})
	end := len(d.cells)
	d.Ops = append(d.Ops, sink.Op{
		Keyspace: r.keyspace,
		ID:       r.id,
		Kind:     kind,
		Cells:    d.cells[end-1 : end : end],
		Texts:    d.textsOf(&r),
	})
}

// textsOf returns the texts of the ids of a row.
func (d *Decoder) textsOf(r *row) *sink.Texts {
	if r.idText.text == "" && r.memberText.text == "" {
		return nil
	}
	parts := &d.mapping.parts
	return &sink.Texts{
		ID: r.idText.text, IDNumber: r.idText.number, IDAt: parts[mapID].path,
		Member: r.memberText.text, MemberNumber: r.memberText.number, MemberAt: parts[mapMember].path,
	}
}
