package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"agentsvc/schemas/id"
)

// Commands accept a full id, the end of an id, or a slug where the kind has one.
// The beginning of an id says only when the thing was made: things of one minute
// begin alike, so it names nothing.

const (
	// shortDigits is how many hex digits of an id's end a short id has.
	shortDigits = 8
	// maxLooked bounds the look-up of a short id: 100 requests.
	maxLooked = 10_000
	// maxCandidates is how many things an error lists.
	maxCandidates = 8
)

// kind is a kind of thing that commands name.
type kind struct {
	what  string // in errors, as "approval"
	path  string // of its list
	query string // makes the list complete
	slugs bool   // its things have slugs
}

var (
	agentKind    = kind{what: "agent", path: "/v1/agents", slugs: true}
	approvalKind = kind{what: "approval", path: "/v1/approvals"}
	endUserKind  = kind{what: "end user", path: "/v1/end-users"}
	embedKeyKind = kind{what: "embed key", path: "/v1/embed-keys", query: "include_revoked=true"}
	endpointKind = kind{what: "endpoint", path: "/v1/webhooks"}
	policyKind   = kind{what: "policy", path: "/v1/approval-policies"}
	runKind      = kind{what: "run", path: "/v1/runs"}
	serverKind   = kind{what: "server", path: "/v1/mcp-servers", slugs: true}
	threadKind   = kind{what: "thread", path: "/v1/threads"}
	triggerKind  = kind{what: "trigger", path: "/v1/triggers"}
)

// at is the path of the thing with that id.
func (k kind) at(id string) string { return k.path + "/" + url.PathEscape(id) }

// named is a thing that a command may mean.
type named struct {
	ID, Slug string
	label    string // for people
}

// lookupError says why a text names nothing, or no single thing.
type lookupError struct{ code, text string }

func (e *lookupError) Error() string { return e.text }

// fullID reports whether text is a full id, and answers it in lower case.
func fullID(text string) (string, bool) {
	u, err := id.Parse(strings.ToLower(text))
	return u.String(), err == nil
}

// digitsOf are the hex digits of a part of an id, in lower case.
func digitsOf(text string) (digits string, ok bool) {
	digits = strings.ToLower(strings.ReplaceAll(text, "-", ""))
	return digits, digits != "" && strings.Trim(digits, "0123456789abcdef") == ""
}

// shortID is an id as lists show it: its last 8 hex digits.
func shortID(id string) string {
	if _, full := fullID(id); !full {
		return visible(id)
	}
	return id[len(id)-shortDigits:]
}

// shortOr is the short form of an id, or a dash for none.
func shortOr(id *string) string {
	if id == nil || *id == "" {
		return "-"
	}
	return shortID(*id)
}

// pick returns the one of all that text names: by its full id, by at least 8 hex
// digits of the end of its id, or by its slug where slugs is set.
func pick(what, text string, slugs bool, all []named) (string, error) {
	digits, isHex := digitsOf(text)
	short := isHex && len(digits) >= shortDigits
	var found []named
	for _, n := range all {
		own, _ := digitsOf(n.ID)
		if slugs && n.Slug == text && text != "" || short && strings.HasSuffix(own, digits) {
			found = append(found, n)
		}
	}
	switch {
	case len(found) == 1:
		return found[0].ID, nil
	case len(found) > 1:
		return "", &lookupError{"AMBIGUOUS", fmt.Sprintf("%q names %d %s: give a full id%s", visible(text), len(found), thingsOf(what), candidates(found, true))}
	case !isHex && !slugs:
		return "", notAnID(what, text)
	}
	// What the caller may have meant is listed and never taken.
	var near []named
	for _, n := range all {
		own, _ := digitsOf(n.ID)
		if isHex && (!short && strings.HasSuffix(own, digits) || len(digits) >= 4 && strings.HasPrefix(own, digits)) {
			near = append(near, n)
		}
	}
	switch {
	case isHex && !short && !slugs:
		return "", &lookupError{"TOO_SHORT", fmt.Sprintf("%q is too short: give the last %d digits of the %s's id, or more%s", visible(text), shortDigits, what, candidates(near, false))}
	case !slugs && len(near) > 0:
		return "", &lookupError{"NOT_FOUND", fmt.Sprintf("no %s's id ends with %q; the beginning of an id names nothing%s", what, visible(text), candidates(near, false))}
	case !slugs:
		return "", &lookupError{"NOT_FOUND", fmt.Sprintf("no %s's id ends with %q", what, visible(text))}
	}
	said := fmt.Sprintf("there is no %s with the slug %q", what, visible(text))
	if like := nearest(strings.ToLower(text), slugsOf(all)); like != "" {
		said += fmt.Sprintf("; did you mean %q?", like)
	}
	if len(near) > 0 {
		said += fmt.Sprintf("; an id is named by its last %d digits%s", shortDigits, candidates(near, false))
	}
	return "", &lookupError{"NOT_FOUND", said}
}

func notAnID(what, text string) error {
	return &lookupError{"NOT_FOUND", fmt.Sprintf("%q is not a valid %s id: give the full id or its last %d hex digits", visible(text), what, shortDigits)}
}

func slugsOf(all []named) []string {
	var out []string
	for _, n := range all {
		if n.Slug != "" {
			out = append(out, n.Slug)
		}
	}
	return out
}

// candidates lists things below an error, with full ids where short ones may be
// the same.
func candidates(all []named, full bool) string {
	var b strings.Builder
	for i, n := range all {
		if i == maxCandidates {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-i)
			break
		}
		shown := n.ID
		if !full {
			shown = shortID(n.ID)
		}
		fmt.Fprintf(&b, "\n  %s", strings.TrimRight(shown+"  "+n.label, " "))
	}
	return b.String()
}

// thingsOf is the plural of a kind's name.
func thingsOf(what string) string {
	if stem, y := strings.CutSuffix(what, "y"); y && !strings.HasSuffix(what, "ey") {
		return stem + "ies"
	}
	return what + "s"
}

// find answers the id of the thing that text names. It asks the service only for
// what is no full id.
func (c *client) find(ctx context.Context, k kind, text string) (string, error) {
	ids, err := c.findAll(ctx, k, []string{text})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

// findAll does so for several texts and answers each id once, in their order. It
// reads the list at most once.
func (c *client) findAll(ctx context.Context, k kind, texts []string) ([]string, error) {
	var all []named
	listed, more := false, false
	ids := []string{}
	for _, text := range texts {
		found, full := fullID(text)
		if !full {
			if _, isHex := digitsOf(text); !isHex && !k.slugs || text == "" {
				return nil, notAnID(k.what, text)
			}
			var err error
			if !listed {
				if all, more, err = c.nameable(ctx, k); err != nil {
					return nil, err
				}
				listed = true
			}
			if found, err = pick(k.what, text, k.slugs, all); err != nil {
				return nil, err
			}
			if more && !slices.ContainsFunc(all, func(n named) bool { return n.ID == found && n.Slug == text && k.slugs }) {
				return nil, &lookupError{"AMBIGUOUS", fmt.Sprintf("%q is the end of %s, but only the newest %d %s were looked through: give the full id", visible(text), found, maxLooked, thingsOf(k.what))}
			}
		}
		if !slices.Contains(ids, found) {
			ids = append(ids, found)
		}
	}
	return ids, nil
}

// nameable lists what texts may name, and whether there is more.
func (c *client) nameable(ctx context.Context, k kind) (all []named, more bool, err error) {
	q, err := url.ParseQuery(k.query)
	if err != nil {
		return nil, false, err
	}
	items, next, err := c.pages(ctx, k.path, q, maxLooked)
	if err != nil {
		return nil, false, err
	}
	more = next != nil
	all = make([]named, len(items))
	for i, item := range items {
		if all[i], err = nameOf(item); err != nil {
			return nil, false, err
		}
	}
	return all, more, nil
}

// nameOf reads how a thing of any kind is named.
func nameOf(item json.RawMessage) (named, error) {
	var v struct {
		ID              string `json:"id"`
		Slug            string `json:"slug"`
		Name            string `json:"name"`
		Title           string `json:"title"`
		ExternalID      string `json:"external_id"`
		URL             string `json:"url"`
		Type            string `json:"type"`
		Status          string `json:"status"`
		RequestedAction struct {
			Tool string `json:"tool"`
		} `json:"requested_action"`
	}
	if err := json.Unmarshal(item, &v); err != nil {
		return named{}, err
	}
	var words []string
	for _, word := range []string{v.Slug, v.RequestedAction.Tool, v.Name, v.Title, v.ExternalID, v.URL, v.Type, v.Status} {
		if word != "" {
			words = append(words, shorten(visible(word), 60))
		}
	}
	return named{ID: v.ID, Slug: v.Slug, label: strings.Join(words, "  ")}, nil
}

// findAgent answers the id of an agent by its slug or id.
func (c *client) findAgent(ctx context.Context, text string) (string, error) {
	return c.find(ctx, agentKind, text)
}
