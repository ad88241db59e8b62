package tool

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"agentsvc/schemas/flow/scan"
	"agentsvc/schemas/id"
	"agentsvc/schemas/jsontext"
	"agentsvc/schemas/redact"
)

// keyName is the argument by which a tool recognises a repeated call.
const keyName = "idempotency_key"

// Digest returns the hash of exactly these bytes, which an approval stores for its frozen
// arguments.
func Digest(args json.RawMessage) [32]byte { return sha256.Sum256(args) }

// Key returns the idempotency_key of a call, always the same for a step: the name-based UUID
// (RFC 9562, version 5) of the step's idx in the run's name space. A UUID also passes schemas
// that require one.
func Key(run id.RunID, idx int) string {
	h := sha1.New()
	h.Write(run.UUID[:])
	h.Write(strconv.AppendInt(nil, int64(idx), 10))
	var u id.UUID
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return u.String()
}

// TakesKey reports whether a tool's schema has a property idempotency_key that may hold text. It
// is asked for each call, so nothing is decoded but the type.
func TakesKey(schema json.RawMessage) bool {
	if !json.Valid(schema) {
		return false
	}
	properties, _ := scan.Member(schema, "properties")
	key, ok := scan.Member(properties, keyName)
	if !ok || string(key) == "false" {
		return false
	}
	kind, ok := scan.Member(key, "type")
	if !ok {
		return true
	}
	var one string
	if json.Unmarshal(kind, &one) == nil {
		return one == "string"
	}
	var several []string
	return json.Unmarshal(kind, &several) == nil && slices.Contains(several, "string")
}

// WithKey fills in idempotency_key if the schema has it and the model left it out, or wrote
// null or "" for it. All other bytes stay.
func WithKey(schema, args json.RawMessage, key string) json.RawMessage {
	top, err := parse(args)
	if err != nil || top.kind != '{' || !TakesKey(schema) {
		return args
	}
	if m := top.member(keyName); m != nil {
		if raw := string(args[m.from:m.to]); raw != "null" && raw != `""` {
			return args
		}
	}
	return put(args, top, keyName, quoteJSON(key))
}

// KeepKey puts the idempotency_key of the frozen arguments back into edited ones: an edit
// does not make a new call. All other bytes stay.
func KeepKey(edited, frozen json.RawMessage) json.RawMessage {
	was, err := parse(frozen)
	if err != nil {
		return edited
	}
	m := was.member(keyName)
	if m == nil {
		return edited
	}
	top, err := parse(edited)
	if err != nil || top.kind != '{' {
		return edited
	}
	return put(edited, top, keyName, frozen[m.from:m.to])
}

// put sets a member of an object: in place if it exists, else at the end.
func put(text json.RawMessage, top *value, key string, v []byte) json.RawMessage {
	var cuts []cut
	for i := range top.members {
		if m := &top.members[i]; m.key == key {
			cuts = append(cuts, cut{m.from, m.to, v})
		}
	}
	if cuts == nil {
		at, add := top.from+1, []byte(nil)
		if n := len(top.members); n > 0 {
			at, add = top.members[n-1].to, []byte{','}
		}
		add = append(append(add, quoteJSON(key)...), ':')
		cuts = []cut{{at, at, append(add, v...)}}
	}
	return splice(text, cuts)
}

// ErrMasked is returned by Unmask for a mark that replaces no value.
var ErrMasked = errors.New("there is no redacted value here that could be kept")

// Unmask turns edited arguments into the arguments to run. The approver saw a copy of the
// frozen ones with secrets masked. If redact.Mark, or a text with a masked part, is
// unchanged, the frozen value at its path replaces it. A mark at a path without a masked
// value is an error that names the path, and so is one left in a changed text: it cannot be
// meant to be sent. All other bytes stay.
func Unmask(edited, frozen, shown json.RawMessage) (json.RawMessage, error) {
	var texts [3]*value
	for i, t := range []json.RawMessage{edited, frozen, shown} {
		v, err := parse(t)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", [...]string{"edited arguments", "frozen arguments", "shown arguments"}[i], err)
		}
		texts[i] = v
	}
	u := unmasker{edited: edited, frozen: frozen, shown: shown}
	if err := u.walk("", texts[0], texts[1], texts[2]); err != nil {
		return nil, err
	}
	return splice(edited, u.cuts), nil
}

type unmasker struct {
	edited, frozen, shown json.RawMessage
	cuts                  []cut
}

func (u *unmasker) walk(at string, edited, frozen, shown *value) error {
	switch edited.kind {
	case '"':
		text, was := edited.text(u.edited), ""
		if frozen != nil && shown != nil && shown.kind == '"' {
			was = shown.text(u.shown)
		}
		masked := strings.Contains(was, redact.Mark)
		switch {
		case masked && (text == redact.Mark || text == was):
			u.cuts = append(u.cuts, cut{edited.from, edited.to, u.frozen[frozen.from:frozen.to]})
		case text == redact.Mark, masked && strings.Contains(text, redact.Mark):
			return fmt.Errorf("%s: %w", path(at), ErrMasked)
		}
	case '{':
		for i := range edited.members {
			m := &edited.members[i]
			if strings.Contains(m.key, redact.Mark) && shown.member(m.key) != nil && frozen.member(m.key) == nil {
				return fmt.Errorf("%s: %w", path(under(at, m.key)), ErrMasked)
			}
			if err := u.walk(under(at, m.key), &m.value, frozen.member(m.key), shown.member(m.key)); err != nil {
				return err
			}
		}
	case '[':
		for i := range edited.members {
			if err := u.walk(item(at, i), &edited.members[i].value, frozen.item(i), shown.item(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// UnsentResult is a FailedResult of an attempt that carried nothing out.
func UnsentResult(code, message string) Outcome {
	out := FailedResult(code, message)
	out.Unsent = true
	return out
}

// FailedResult returns the failed tool result { error, message } that the model gets if
// nothing ran or nothing came back.
func FailedResult(code, message string) Outcome {
	text := jsontext.Must(struct {
		Error   string `json:"error"`
		Message string `json:"message"`
	}{code, message})
	return Outcome{Content: string(text), Shown: text, IsError: true}
}
