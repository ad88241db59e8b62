package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/api"
)

// Commands accept a full id, the end of an id, or a slug if the kind has slugs. They do not
// accept the beginning of an id: it is a time, which things of the same minute share.

const (
	// maxLooked is the most items that the look-up of a short id reads, in 100 requests.
	maxLooked = 10_000
	// maxMeant is how many items it reads to say what may have been meant, in one request.
	maxMeant = 100
)

// kind is a kind of thing that commands can name.
type kind struct {
	what  string // in errors, as "approval"
	path  string // of its list
	query string // a filter with which the list is complete
	slugs bool   // its things have slugs
	// found is the kind in a search, of kinds with many things: a search knows the end of each id.
	found api.FoundKind
}

var (
	agentKind    = kind{what: "agent", path: "/v1/agents", slugs: true}
	approvalKind = kind{what: "approval", path: "/v1/approvals", found: api.FoundApproval}
	endUserKind  = kind{what: "end user", path: "/v1/end-users", found: api.FoundEndUser}
	embedKeyKind = kind{what: "embed key", path: "/v1/embed-keys", query: "include_revoked=true"}
	endpointKind = kind{what: "endpoint", path: "/v1/webhooks"}
	policyKind   = kind{what: "policy", path: "/v1/approval-policies"}
	runKind      = kind{what: "run", path: "/v1/runs", found: api.FoundRun}
	serverKind   = kind{what: "server", path: "/v1/mcp-servers", slugs: true}
	threadKind   = kind{what: "thread", path: "/v1/threads", found: api.FoundThread}
	triggerKind  = kind{what: "trigger", path: "/v1/triggers"}
	workflowKind = kind{what: "workflow", path: "/v1/workflows", slugs: true}
)

// at returns the path of the thing with that id.
func (k kind) at(id string) string { return k.path + "/" + url.PathEscape(id) }

// find returns the id of the thing that text names. It asks the service only if text is not
// a full id.
func (c *Client) find(ctx context.Context, k kind, text string) (string, error) {
	ids, err := c.findAll(ctx, k, []string{text})
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

// findAll does the same for several texts. It returns each id once, in their order, and
// reads the list at most once.
func (c *Client) findAll(ctx context.Context, k kind, texts []string) ([]string, error) {
	var all []cli.Named
	listed, more := false, false
	ids := []string{}
	for _, text := range texts {
		found, full := cli.FullID(text)
		if !full {
			if _, isHex := cli.DigitsOf(text); !isHex && !k.slugs || text == "" {
				return nil, cli.NotAnID(k.what, text)
			}
			hits, searched, err := c.search(ctx, k, text)
			if err != nil {
				return nil, err
			}
			if len(hits) == 0 {
				if !listed {
					most := maxLooked
					if searched {
						most = maxMeant
					}
					if all, more, err = c.nameable(ctx, k, most); err != nil {
						return nil, err
					}
					listed = true
				}
				hits = all
			}
			if found, err = cli.Pick(k.what, text, k.slugs, hits); err != nil {
				return nil, err
			}
			if more && !searched && !slices.ContainsFunc(all, func(n cli.Named) bool { return n.ID == found && n.Slug == text && k.slugs }) {
				return nil, &cli.LookupError{Code: "AMBIGUOUS", Text: fmt.Sprintf("%q is the end of %s, but only the newest %d %s were looked through: give the full id", cli.Visible(text), found, maxLooked, cli.ThingsOf(k.what))}
			}
		}
		if !slices.Contains(ids, found) {
			ids = append(ids, found)
		}
	}
	return ids, nil
}

// search returns the things whose ids end with text, of a kind with many. It reports whether these
// are all there are: not if the kind is found by its list alone, if the service has no search, or if
// more was found than a search tells.
func (c *Client) search(ctx context.Context, k kind, text string) (hits []cli.Named, whole bool, err error) {
	digits, _ := cli.DigitsOf(text)
	if k.found == "" || !cli.IsShortID(digits) {
		return nil, k.found != "", nil
	}
	var got struct{ Items []api.Found }
	err = c.fetch(ctx, "/v1/search?q="+url.QueryEscape(digits), &got)
	var refused *APIError
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil, false, nil
	}
	if err != nil || len(got.Items) >= api.MaxFound {
		return nil, false, err
	}
	for _, f := range got.Items {
		if own, _ := cli.DigitsOf(f.ID.String()); f.Kind == k.found && strings.HasSuffix(own, digits) {
			hits = append(hits, cli.Named{ID: f.ID.String(), Label: cli.Shorten(cli.Visible(f.Title), 60) + "  " + cli.Shorten(cli.Visible(f.Detail), 60)})
		}
	}
	return hits, true, nil
}

// nameable lists up to most things that texts may name, and reports whether there are more.
func (c *Client) nameable(ctx context.Context, k kind, most int) (all []cli.Named, more bool, err error) {
	q, err := url.ParseQuery(k.query)
	if err != nil {
		return nil, false, err
	}
	items, next, err := c.Pages(ctx, k.path, q, most)
	if err != nil {
		return nil, false, err
	}
	more = next != nil
	all = make([]cli.Named, len(items))
	for i, item := range items {
		if all[i], err = nameOf(item); err != nil {
			return nil, false, err
		}
	}
	return all, more, nil
}

// nameOf reads the names of a thing of any kind.
func nameOf(item json.RawMessage) (cli.Named, error) {
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
		return cli.Named{}, err
	}
	var words []string
	for _, word := range []string{v.Slug, v.RequestedAction.Tool, v.Name, v.Title, v.ExternalID, v.URL, v.Type, v.Status} {
		if word != "" {
			words = append(words, cli.Shorten(cli.Visible(word), 60))
		}
	}
	return cli.Named{ID: v.ID, Slug: v.Slug, Label: strings.Join(words, "  ")}, nil
}

// findAgent returns the id of an agent by its slug or id.
func (c *Client) findAgent(ctx context.Context, text string) (string, error) {
	return c.find(ctx, agentKind, text)
}
