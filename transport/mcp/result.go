package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

const (
	maxTools       = 1_000
	maxPages       = 100
	maxName        = 128
	maxDescription = 8 << 10
	maxSchema      = 256 << 10
)

// Answer is the result of a tool call.
type Answer struct {
	// Content is text for a model: the text parts, one per line; other parts as JSON, binary
	// ones without their bytes; the structured result if there is nothing else.
	Content string
	// IsError means that the tool itself reports a failure.
	IsError bool
}

var (
	errNoContent = errors.New("neither content nor structured content")
	errNoList    = errors.New("no list")
)

// decodeResult reads a tools/call result.
func decodeResult(raw json.RawMessage) (Answer, error) {
	var r struct {
		ResultType string          `json:"resultType"`
		Content    json.RawMessage `json:"content"`
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool            `json:"isError"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return Answer{}, err
	}
	if r.ResultType == "input_required" {
		return Answer{}, &Error{Kind: Protocol, Message: "the tool asks for input of a kind that is not given", MaybeRan: true}
	}
	var parts []string
	if !absent(r.Content) {
		err := each(r.Content, func(block json.RawMessage) error {
			s, err := part(block)
			parts = append(parts, s)
			return err
		})
		if err != nil {
			return Answer{}, err
		}
	} else if absent(r.Structured) {
		return Answer{}, errNoContent
	}
	if len(parts) == 0 && !absent(r.Structured) {
		parts = append(parts, compact(r.Structured))
	}
	// Databases and terminals do not accept NUL.
	return Answer{strings.ReplaceAll(strings.Join(parts, "\n"), "\x00", "\uFFFD"), r.IsError}, nil
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// each decodes an array element by element, so that memory is bounded by its longest element.
func each(raw json.RawMessage, f func(json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errNoList
	}
	for d.More() {
		var e json.RawMessage
		if err := d.Decode(&e); err != nil {
			return err
		}
		if err := f(e); err != nil {
			return err
		}
	}
	return nil
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// part returns one block of content as text.
func part(raw json.RawMessage) (string, error) {
	var b struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		MIME     string `json:"mimeType"`
		Data     string `json:"data"`
		Resource *struct {
			URI  string  `json:"uri"`
			MIME string  `json:"mimeType,omitempty"`
			Blob *string `json:"blob"`
		} `json:"resource"`
	}
	if err := json.Unmarshal(raw, &b); err != nil {
		return "", err
	}
	type binary struct {
		Type  string `json:"type"`
		URI   string `json:"uri,omitempty"`
		MIME  string `json:"mimeType,omitempty"`
		Bytes int    `json:"bytes"`
	}
	var short binary
	switch {
	case b.Type == "text":
		return b.Text, nil
	case b.Type == "image", b.Type == "audio":
		short = binary{b.Type, "", b.MIME, base64.StdEncoding.DecodedLen(len(b.Data))}
	case b.Type == "resource" && b.Resource != nil && b.Resource.Blob != nil:
		short = binary{b.Type, b.Resource.URI, b.Resource.MIME, base64.StdEncoding.DecodedLen(len(*b.Resource.Blob))}
	default:
		return compact(raw), nil
	}
	out, err := json.Marshal(short)
	return string(out), err
}

// listed is one entry of tools/list.
type listed struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"inputSchema"`
	Annotations struct {
		ReadOnly   bool `json:"readOnlyHint"`
		Idempotent bool `json:"idempotentHint"`
	} `json:"annotations"`
}

// accept reads one entry of tools/list; false means that the tool is left out.
func accept(raw json.RawMessage) (listed, bool) {
	var l listed
	if json.Unmarshal(raw, &l) != nil || !nameFits(l.Name) || len(l.Schema) > maxSchema {
		return listed{}, false
	}
	if absent(l.Schema) {
		l.Schema = json.RawMessage(`{"type":"object"}`)
	}
	// A schema with NUL could not be stored with an approval.
	if l.Schema[0] != '{' || bytes.Contains(l.Schema, []byte(`\u0000`)) {
		return listed{}, false
	}
	return l, true
}

// accepted rewrites a page of tools/list for the library, and counts the tools left out. The
// library decodes schemas into Go values and fails on one that it cannot read, so it gets
// only the names.
func accepted(raw json.RawMessage) (json.RawMessage, int, error) {
	page, err := readPage(raw)
	if err != nil {
		return nil, 0, err
	}
	all := len(page.Tools)
	kept := page.Tools[:0]
	for _, t := range page.Tools {
		if l, ok := accept(t); ok {
			kept = append(kept, json.RawMessage(`{"name":"`+l.Name+`","inputSchema":{"type":"object"}}`)) // the name has no characters to escape
		}
	}
	page.Tools = kept
	out, err := json.Marshal(page)
	return out, all - len(kept), err
}

type page struct {
	Tools []json.RawMessage `json:"tools"`
	Next  string            `json:"nextCursor,omitempty"`
}

// readPage reads a page of tools/list, at most maxTools entries.
func readPage(raw json.RawMessage) (page, error) {
	var r struct {
		Tools json.RawMessage `json:"tools"`
		Next  string          `json:"nextCursor"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return page{}, err
	}
	p := page{Tools: []json.RawMessage{}, Next: r.Next}
	if absent(r.Tools) {
		return p, errNoList
	}
	err := each(r.Tools, func(t json.RawMessage) error {
		if len(p.Tools) < maxTools {
			p.Tools = append(p.Tools, t)
		}
		return nil
	})
	return p, err
}

func nameFits(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' && c != '/' {
			return false
		}
	}
	return true
}

// spec returns the tool in the form that the rest of the service uses.
func (l listed) spec(t Target, m *mask) tool.Spec {
	d := l.Description
	if d == "" {
		d = l.Title
	}
	d = problem.CutBytes(m.Text(visible(d)), maxDescription)
	return tool.Spec{
		Source: tool.MCP, Owner: t.Slug, Name: l.Name, Description: d,
		Schema:   json.RawMessage(m.JSON([]byte(compact(l.Schema)))),
		ReadOnly: l.Annotations.ReadOnly, Idempotent: l.Annotations.Idempotent,
	}
}
