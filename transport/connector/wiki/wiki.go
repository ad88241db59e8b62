// Package wiki reads Confluence Cloud through its REST interface v2: the pages of all spaces, or of
// one. Each walk lists everything, without the bodies; the body of a page whose version changed is
// fetched in the storage format and becomes plain HTML.
package wiki

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"agentsvc/schemas/source"
	"agentsvc/transport/connector/vendor"
)

const perPage = "100"

type wiki struct {
	client *vendor.Client
	base   string
	space  string // a key; "" for all spaces
}

// Open returns a wiki.
func Open(clients *vendor.Clients, c source.Config, credentials map[string]string) (source.Source, error) {
	client, err := clients.Client("the wiki", c.BaseURL+"/wiki/api/v2")
	if err != nil {
		return nil, err
	}
	email, token := credentials["email"], credentials["api_token"]
	client.Authorize = func(r *http.Request) { r.SetBasicAuth(email, token) }
	client.Statuses = map[int]string{
		http.StatusUnauthorized: "the e-mail and the API token were refused",
		http.StatusForbidden:    "the API token gives no right to read the wiki",
		http.StatusNotFound:     "there is no wiki at this address",
	}
	return &wiki{client, c.BaseURL, c.SpaceKey}, nil
}

// position of a walk in the middle.
type position struct {
	Next string `json:"u"`
	vendor.Walk
}

type links struct {
	Next  string `json:"next"`
	Base  string `json:"base"`
	WebUI string `json:"webui"`
}

type answer struct {
	Results *[]entry `json:"results"`
	Links   links    `json:"_links"`
}

type entry struct {
	ID      text   `json:"id"`
	Key     string `json:"key"` // of a space
	Title   string `json:"title"`
	Status  string `json:"status"`
	Version struct {
		Number    int64  `json:"number"`
		CreatedAt string `json:"createdAt"`
	} `json:"version"`
	Body struct {
		Storage *struct {
			Value string `json:"value"`
		} `json:"storage"`
	} `json:"body"`
	Links links `json:"_links"`
}

// text is an id, which is a string or a number.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	*t = text(strings.Trim(string(b), `"`))
	return nil
}

// Walk implements source.Source. A cursor that the vendor no longer knows makes the walk begin
// anew.
func (w *wiki) Walk(ctx context.Context, from source.Position, each func(context.Context, source.Page) error) error {
	var at position
	resumed := vendor.Load(from.Resume, &at)
	restart := false
	if !resumed {
		first, err := w.first(ctx)
		if err != nil {
			return err
		}
		at = position{Next: first}
	}
	for {
		a, err := w.page(ctx, at.Next)
		if f := new(source.Fault); resumed && errors.As(err, &f) && f.Lasting && !f.Login {
			first, err := w.first(ctx)
			if err != nil {
				return err
			}
			at, resumed, restart = position{Next: first}, false, true
			continue
		}
		if err != nil {
			return err
		}
		resumed = false
		if err := at.Count(len(*a.Results)); err != nil {
			return err
		}
		page := source.Page{Items: w.items(a), Restart: restart}
		restart = false
		if a.Links.Next == "" {
			page.Last, page.Full = true, true
		} else {
			next, err := w.client.Follow(w.below(a.Links.Next))
			if err != nil {
				return err
			}
			if next == at.Next {
				return w.client.Strange()
			}
			at.Next = next
			page.Resume = vendor.Save(at)
		}
		if err := each(ctx, page); err != nil || page.Last {
			return err
		}
	}
}

// below returns the address of a next link. It is relative to the host, with or without the /wiki
// of the base.
func (w *wiki) below(next string) string {
	if strings.HasPrefix(next, "/api/") {
		return w.base + "/wiki" + next
	}
	if strings.HasPrefix(next, "/wiki/") {
		return w.base + next
	}
	return next
}

// first returns the address of the first page of the listing.
func (w *wiki) first(ctx context.Context) (string, error) {
	query := url.Values{"limit": {perPage}, "status": {"current"}}
	if w.space == "" {
		return w.client.At(query, "pages"), nil
	}
	var a answer
	if err := w.client.JSON(ctx, w.client.At(url.Values{"keys": {w.space}}, "spaces"), &a); err != nil {
		return "", err
	}
	if a.Results == nil {
		return "", w.client.Strange()
	}
	for _, s := range *a.Results {
		if strings.EqualFold(s.Key, w.space) || s.Key == "" && len(*a.Results) == 1 {
			query.Set("space-id", string(s.ID))
			return w.client.At(query, "pages"), nil
		}
	}
	return "", &source.Fault{Reason: "there is no space with this key, or the API token gives no right to read it", Lasting: true}
}

func (w *wiki) page(ctx context.Context, next string) (*answer, error) {
	at, err := w.client.Follow(next)
	if err != nil {
		return nil, err
	}
	var a answer
	if err := w.client.JSON(ctx, at, &a); err != nil {
		return nil, err
	}
	if a.Results == nil {
		return nil, w.client.Strange()
	}
	return &a, nil
}

func (w *wiki) items(a *answer) []source.Item {
	base := a.Links.Base
	if base == "" {
		base = w.base + "/wiki"
	}
	var out []source.Item
	for _, e := range *a.Results {
		if e.ID == "" || e.Status != "" && e.Status != "current" {
			continue
		}
		i := source.Item{ID: string(e.ID), Name: e.Title, MediaType: "text/html", Size: -1}
		if e.Links.WebUI != "" {
			i.URI = base + e.Links.WebUI
		} else {
			i.URI = base + "/pages/viewpage.action?pageId=" + url.QueryEscape(string(e.ID))
		}
		if e.Version.Number > 0 || e.Version.CreatedAt != "" {
			i.Version = strconv.FormatInt(e.Version.Number, 10) + " " + e.Version.CreatedAt
		}
		out = append(out, i)
	}
	return out
}

// Fetch implements source.Source.
func (w *wiki) Fetch(ctx context.Context, item source.Item) (source.Content, error) {
	e, err := w.body(ctx, item.ID)
	if err != nil {
		return source.Content{}, vendor.OfItem(err)
	}
	if len(e.Body.Storage.Value) > vendor.MaxFile {
		return source.Content{}, &source.Fault{Reason: vendor.TooLarge, Lasting: true, Content: true, Item: true}
	}
	b, err := ToHTML(e.Title, e.Body.Storage.Value)
	if err != nil {
		return source.Content{}, &source.Fault{Reason: err.Error(), Lasting: true, Content: true, Item: true}
	}
	return source.Content{Body: io.NopCloser(bytes.NewReader(b)), MediaType: "text/html", Name: e.Title}, nil
}

// body reads a page with its body: by its own address, or from a listing by id, which some
// gateways before a wiki allow alone.
func (w *wiki) body(ctx context.Context, page string) (*entry, error) {
	var e entry
	err := w.client.JSON(ctx, w.client.At(url.Values{"body-format": {"storage"}}, "pages", page), &e)
	if err == nil && e.Body.Storage != nil {
		return &e, nil
	}
	f := new(source.Fault)
	if err != nil && (!errors.As(err, &f) || !f.Gone) {
		return nil, err
	}
	var a answer
	err = w.client.JSON(ctx, w.client.At(url.Values{"body-format": {"storage"}, "id": {page}, "limit": {"1"}}, "pages"), &a)
	if err != nil {
		return nil, err
	}
	if a.Results != nil {
		for _, e := range *a.Results {
			if string(e.ID) == page && e.Body.Storage != nil {
				return &e, nil
			}
		}
	}
	return nil, &source.Fault{Reason: "the page is no longer in the wiki", Gone: true, Lasting: true}
}
