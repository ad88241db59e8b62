// Package officedrive reads a drive through Microsoft Graph v1.0: root/delta lists what changed
// since a delta link, or everything. A drive's folders are no items; a deleted folder and a delta
// link that the vendor forgot (410) make the walk list everything. Contents come from
// @microsoft.graph.downloadUrl, without the token.
package officedrive

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"agentsvc/schemas/source"
	"agentsvc/transport/connector/vendor"
)

// DefaultURL is the vendor's address.
const DefaultURL = "https://graph.microsoft.com/v1.0"

type drive struct {
	client *vendor.Client
	plain  *vendor.Client // without the token
	id     string
}

// Open returns a drive.
func Open(clients *vendor.Clients, base string, c source.Config, credentials map[string]string) (source.Source, error) {
	client, err := clients.Client("the office drive", base)
	if err != nil {
		return nil, err
	}
	token := credentials["access_token"]
	client.Authorize = func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	client.Statuses = map[int]string{
		http.StatusUnauthorized: "the access token was refused",
		http.StatusForbidden:    "the access token gives no right to read this drive",
		http.StatusNotFound:     "there is no such drive",
	}
	return &drive{client, client.Anonymous(), c.DriveID}, nil
}

// position of a walk in the middle.
type position struct {
	Next string `json:"u"`
	Full bool   `json:"f,omitempty"`
	vendor.Walk
}

type answer struct {
	Value     *[]entry `json:"value"`
	NextLink  string   `json:"@odata.nextLink"`
	DeltaLink string   `json:"@odata.deltaLink"`
}

type entry struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Size        *int64    `json:"size"`
	WebURL      string    `json:"webUrl"`
	ETag        string    `json:"eTag"`
	CTag        string    `json:"cTag"`
	Modified    string    `json:"lastModifiedDateTime"`
	DownloadURL string    `json:"@microsoft.graph.downloadUrl"`
	Deleted     *struct{} `json:"deleted"`
	Folder      *struct{} `json:"folder"`
	Malware     *struct{} `json:"malware"`
	File        *struct {
		MimeType string            `json:"mimeType"`
		Hashes   map[string]string `json:"hashes"`
	} `json:"file"`
}

// Walk implements source.Source.
func (d *drive) Walk(ctx context.Context, from source.Position, each func(context.Context, source.Page) error) error {
	var at position
	if !vendor.Load(from.Resume, &at) {
		at = position{Next: from.Delta, Full: from.Delta == ""}
		if at.Full {
			at.Next = d.start()
		}
	}
	restart, restarted := false, false
	if _, err := d.client.Follow(at.Next); err != nil { // a position at another address than the vendor has now
		at, restart, restarted = position{Next: d.start(), Full: true}, true, true
	}
	for {
		a, err := d.page(ctx, at.Next)
		if forgotten(err) && at.Next != d.start() && !restarted {
			at, restart, restarted = position{Next: d.start(), Full: true}, true, true
			continue
		}
		if err != nil {
			return err
		}
		if !at.Full && hasDeletedFolder(*a.Value) {
			at, restart = position{Next: d.start(), Full: true}, true
			continue
		}
		if err := at.Count(len(*a.Value)); err != nil {
			return err
		}
		page := source.Page{Items: items(*a.Value), Restart: restart}
		restart = false
		switch {
		case a.NextLink != "":
			if a.NextLink == at.Next {
				return d.client.Strange()
			}
			at.Next = a.NextLink
			page.Resume = vendor.Save(at)
		case a.DeltaLink != "":
			page.Last, page.Full, page.Delta = true, at.Full, a.DeltaLink
		default:
			return d.client.Strange() // a listing without its end would delete what it did not name
		}
		if err := each(ctx, page); err != nil || page.Last {
			return err
		}
	}
}

func (d *drive) start() string { return d.client.At(nil, "drives", d.id, "root", "delta") }

func (d *drive) page(ctx context.Context, next string) (*answer, error) {
	at, err := d.client.Follow(next)
	if err != nil {
		return nil, err
	}
	var a answer
	if err := d.client.JSON(ctx, at, &a); err != nil {
		return nil, err
	}
	if a.Value == nil {
		return nil, d.client.Strange()
	}
	return &a, nil
}

// forgotten reports whether the vendor no longer knows a position: 410, and of some positions 400
// or 404. A drive that is gone answers the same from the beginning.
func forgotten(err error) bool {
	f := new(source.Fault)
	return errors.As(err, &f) && (f.Status == http.StatusGone || f.Status == http.StatusBadRequest || f.Status == http.StatusNotFound)
}

// hasDeletedFolder reports whether a folder was deleted. What was in it may not be listed.
func hasDeletedFolder(entries []entry) bool {
	for _, e := range entries {
		if e.Deleted != nil && e.Folder != nil {
			return true
		}
	}
	return false
}

func items(entries []entry) []source.Item {
	var out []source.Item
	for _, e := range entries {
		switch {
		case e.ID == "":
		case e.Deleted != nil:
			out = append(out, source.Item{ID: e.ID, Deleted: true})
		case e.File != nil:
			i := source.Item{ID: e.ID, Name: e.Name, URI: e.WebURL, MediaType: e.File.MimeType, Version: e.version(), Size: -1, Link: e.DownloadURL}
			if e.Size != nil {
				i.Size = *e.Size
			}
			if e.Malware != nil {
				i.Fault = &source.Fault{Reason: "the office drive says that the file holds malware", Lasting: true, Content: true, Item: true}
			}
			out = append(out, i)
		}
	}
	return out
}

// version prefers what changes with the content only.
func (e entry) version() string {
	switch {
	case e.CTag != "":
		return "c:" + e.CTag
	case e.File.Hashes["quickXorHash"] != "":
		return "x:" + e.File.Hashes["quickXorHash"]
	case e.File.Hashes["sha256Hash"] != "":
		return "s:" + e.File.Hashes["sha256Hash"]
	case e.File.Hashes["sha1Hash"] != "":
		return "h:" + e.File.Hashes["sha1Hash"]
	case e.ETag != "":
		return "e:" + e.ETag
	case e.Modified != "":
		return "m:" + e.Modified
	}
	return ""
}

// Fetch implements source.Source. A download URL lives for about an hour; one that is missing or
// refused is asked for anew.
func (d *drive) Fetch(ctx context.Context, item source.Item) (source.Content, error) {
	if item.Link != "" {
		resp, err := d.plain.File(ctx, item.Link, "")
		if err == nil {
			return content(resp, item), nil
		}
		if f := new(source.Fault); !errors.As(err, &f) || !f.Login && !f.Gone && !f.Lasting {
			return source.Content{}, vendor.OfItem(err)
		}
	}
	var e entry
	at := d.client.At(url.Values{}, "drives", d.id, "items", item.ID)
	if err := d.client.JSON(ctx, at, &e); err != nil {
		return source.Content{}, vendor.OfItem(ofFile(err))
	}
	client, link := d.plain, e.DownloadURL
	if link == "" {
		client, link = d.client, at+"/content" // redirects to one
	}
	resp, err := client.File(ctx, link, "")
	if err != nil {
		if f := new(source.Fault); client == d.plain && errors.As(err, &f) && f.Login {
			one := *f
			one.Login = false // of the link, not of the token
			err = &one
		}
		return source.Content{}, vendor.OfItem(ofFile(err))
	}
	return content(resp, item), nil
}

// ofFile gives a fault the words for a file.
func ofFile(err error) error {
	f := new(source.Fault)
	if errors.As(err, &f) && f.Gone {
		return &source.Fault{Reason: "the file is no longer in the office drive", Gone: true, Lasting: true}
	}
	return err
}

func content(resp *http.Response, item source.Item) source.Content {
	kind := item.MediaType
	if kind == "" {
		kind = vendor.MediaType(resp.Header)
	}
	return source.Content{Body: resp.Body, MediaType: kind}
}
