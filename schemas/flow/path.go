package flow

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"unicode/utf8"

	"agentsvc/schemas/problem"
)

// path is a place in a definition. It is written only where a fault is, so that a large
// document without faults costs no text.
type path struct {
	up    *path
	name  string
	index int // if name is empty and up is set
}

func (p *path) key(name string) *path {
	if name == "" {
		name = "\x00" // distinguishes the empty name from an index
	}
	return &path{up: p, name: name}
}

func (p *path) item(i int) *path { return &path{up: p, index: i} }

var plainName = regexp.MustCompile(`^[\p{L}\p{N}_$@-]+$`)

const maxName = 64 // characters of a name in a path

// String returns the path as people write it: definition.nodes[2].args.order. Names with other
// characters stand in brackets and quotes.
func (p *path) String() string {
	if p.up == nil {
		return p.name
	}
	up := p.up.String()
	switch {
	case p.name == "":
		return up + "[" + strconv.Itoa(p.index) + "]"
	case p.name == "\x00":
		return up + `[""]`
	}
	name := p.name
	if utf8.RuneCountInString(name) > maxName {
		name = string([]rune(name)[:maxName]) + "…"
	}
	if plainName.MatchString(name) {
		return up + "." + name
	}
	return up + "[" + strconv.Quote(name) + "]"
}

// clip shortens what a message quotes.
func clip(s string) string { return problem.Clip(s, 60) }

// compact returns JSON without white space.
func compact(raw []byte) []byte {
	if !bytes.ContainsAny(raw, " \t\r\n") {
		return raw
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return raw
	}
	return b.Bytes()
}
