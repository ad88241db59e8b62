// Package clouddrive reads Google Drive v3: everything that the token can see, or a folder with its
// subfolders. Each walk lists everything; contents that did not change are not fetched. Documents
// of the vendor's editors are exported; forms, shortcuts and other things without a text are
// skipped.
package clouddrive

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"agentsvc/schemas/source"
	"agentsvc/transport/connector/vendor"
)

// DefaultURL is the vendor's address.
const DefaultURL = "https://www.googleapis.com/drive/v3"

const (
	editor     = "application/vnd.google-apps."
	folder     = editor + "folder"
	maxFolders = 10_000
	fields     = "nextPageToken,incompleteSearch,files(id,name,mimeType,modifiedTime,md5Checksum,sha256Checksum,size,webViewLink,trashed)"
)

// exports lists the forms in which editors' documents are fetched, the best first.
var exports = map[string][]string{
	editor + "document":     {"text/markdown", "text/html", "text/plain"},
	editor + "spreadsheet":  {"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "text/csv"},
	editor + "presentation": {"application/vnd.openxmlformats-officedocument.presentationml.presentation", "text/plain"},
	editor + "drawing":      {"application/pdf"},
}

type drive struct {
	client *vendor.Client
	folder string
}

// Open returns a drive.
func Open(clients *vendor.Clients, base string, c source.Config, credentials map[string]string) (source.Source, error) {
	client, err := clients.Client("the cloud drive", base)
	if err != nil {
		return nil, err
	}
	token := credentials["access_token"]
	client.Authorize = func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
	client.Statuses = map[int]string{
		http.StatusUnauthorized: "the access token was refused",
		http.StatusForbidden:    "the access token gives no right to read the drive",
		http.StatusNotFound:     "there is no such folder",
	}
	client.Judge = judge
	return &drive{client, c.FolderID}, nil
}

// judge finds the limits that the vendor answers with 403.
func judge(status int, body []byte) *source.Fault {
	var e struct {
		Error struct {
			Errors []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if status != http.StatusForbidden || json.Unmarshal(body, &e) != nil || len(e.Error.Errors) == 0 {
		return nil
	}
	switch e.Error.Errors[0].Reason {
	case "rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded":
		return &source.Fault{Reason: "the cloud drive limits the number of requests (403)", Again: true}
	case "dailyLimitExceeded", "quotaExceeded":
		return &source.Fault{Reason: "the cloud drive's quota of requests is used up (403)"}
	case "exportSizeLimitExceeded":
		return &source.Fault{Reason: "the document is too large for the cloud drive to export", Lasting: true}
	}
	return nil
}

// position of a walk: the folders found so far, how many of them are listed, and where in the
// next one. Without a folder the list is empty.
type position struct {
	Folders []string `json:"f,omitempty"`
	Listed  int      `json:"l,omitempty"`
	Token   string   `json:"t,omitempty"`
	Partial bool     `json:"i,omitempty"` // the vendor did not search everything
	vendor.Walk
}

type answer struct {
	Files      *[]entry `json:"files"`
	Next       string   `json:"nextPageToken"`
	Incomplete bool     `json:"incompleteSearch"`
}

type entry struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	MimeType string `json:"mimeType"`
	Modified string `json:"modifiedTime"`
	MD5      string `json:"md5Checksum"`
	SHA256   string `json:"sha256Checksum"`
	Size     string `json:"size"`
	Link     string `json:"webViewLink"`
	Trashed  bool   `json:"trashed"`
}

// Walk implements source.Source. A page token that the vendor no longer knows makes the walk begin
// anew.
func (d *drive) Walk(ctx context.Context, from source.Position, each func(context.Context, source.Page) error) error {
	var at position
	resumed := vendor.Load(from.Resume, &at) && (d.folder == "" || at.Listed < len(at.Folders))
	if !resumed {
		at = d.start()
	}
	known := map[string]bool{}
	for _, f := range at.Folders {
		known[f] = true
	}
	saved, restart := at.Pages, false
	for {
		a, err := d.page(ctx, at)
		if f := new(source.Fault); resumed && errors.As(err, &f) && f.Lasting && !f.Login {
			at, resumed, restart, known, saved = d.start(), false, true, map[string]bool{d.folder: true}, 0
			continue
		}
		if err != nil {
			return err
		}
		resumed = false
		if err := at.Count(len(*a.Files)); err != nil {
			return err
		}
		if a.Next != "" && a.Next == at.Token {
			return d.client.Strange()
		}
		at.Partial = at.Partial || a.Incomplete
		page := source.Page{Items: d.items(*a.Files), Restart: restart}
		restart = false
		if d.folder != "" {
			for _, e := range *a.Files {
				if e.MimeType == folder && !e.Trashed && !known[e.ID] {
					known[e.ID] = true
					at.Folders = append(at.Folders, e.ID)
				}
			}
			if len(at.Folders) > maxFolders {
				return &source.Fault{Reason: "the folder has more than 10,000 subfolders", Lasting: true}
			}
		}
		if at.Token = a.Next; a.Next == "" {
			at.Listed++
			at.Empty = 0 // an empty folder ends
			if at.Listed >= len(at.Folders) {
				page.Last, page.Full = true, !at.Partial
			}
		}
		// A position holds all folders: with many of them it is not saved behind each page.
		if !page.Last && (at.Pages >= saved+1+len(at.Folders)/50 || page.Restart) {
			page.Resume, saved = vendor.Save(at), at.Pages
		}
		if err := each(ctx, page); err != nil || page.Last {
			return err
		}
	}
}

func (d *drive) start() position {
	if d.folder == "" {
		return position{}
	}
	return position{Folders: []string{d.folder}}
}

func (d *drive) page(ctx context.Context, at position) (*answer, error) {
	q := "trashed = false"
	if d.folder != "" {
		q = "'" + at.Folders[at.Listed] + "' in parents and " + q
	}
	query := url.Values{"q": {q}, "fields": {fields}, "pageSize": {"1000"}, "supportsAllDrives": {"true"}, "includeItemsFromAllDrives": {"true"}}
	if at.Token != "" {
		query.Set("pageToken", at.Token)
	}
	var a answer
	if err := d.client.JSON(ctx, d.client.At(query, "files"), &a); err != nil {
		return nil, err
	}
	if a.Files == nil {
		return nil, d.client.Strange()
	}
	for _, e := range *a.Files {
		if strings.ContainsAny(e.ID, `'\`) {
			return nil, d.client.Strange() // an id stands in the next query
		}
	}
	return &a, nil
}

func (d *drive) items(entries []entry) []source.Item {
	var out []source.Item
	for _, e := range entries {
		if e.ID == "" || e.Trashed || strings.HasPrefix(e.MimeType, editor) && exports[e.MimeType] == nil {
			continue
		}
		i := source.Item{ID: e.ID, Name: e.Name, URI: e.Link, MediaType: e.MimeType, Version: e.version(), Size: -1}
		if n, err := strconv.ParseInt(e.Size, 10, 64); err == nil && exports[e.MimeType] == nil {
			i.Size = n
		}
		out = append(out, i)
	}
	return out
}

// version prefers what changes with the content only.
func (e entry) version() string {
	switch {
	case e.MD5 != "":
		return "m:" + e.MD5
	case e.SHA256 != "":
		return "s:" + e.SHA256
	case e.Modified != "":
		return "t:" + e.Modified
	}
	return ""
}

// Fetch implements source.Source.
func (d *drive) Fetch(ctx context.Context, item source.Item) (source.Content, error) {
	forms, ok := exports[item.MediaType]
	if !ok {
		resp, err := d.client.File(ctx, d.client.At(url.Values{"alt": {"media"}, "supportsAllDrives": {"true"}}, "files", item.ID), "")
		if err != nil {
			return source.Content{}, ofFile(err)
		}
		return source.Content{Body: resp.Body, MediaType: item.MediaType}, nil
	}
	var last error
	for _, form := range forms {
		resp, err := d.client.File(ctx, d.client.At(url.Values{"mimeType": {form}}, "files", item.ID, "export"), "")
		if err == nil {
			if said := vendor.MediaType(resp.Header); said != "" {
				form = said
			}
			return source.Content{Body: resp.Body, MediaType: form}, nil
		}
		last = err
		if f := new(source.Fault); !errors.As(err, &f) || !f.Lasting || f.Login || f.Gone {
			break // another form would not help
		}
	}
	return source.Content{}, ofFile(last)
}

// ofFile makes a fault one of a file.
func ofFile(err error) error {
	f := new(source.Fault)
	if errors.As(err, &f) && f.Gone {
		err = &source.Fault{Reason: "the file is no longer in the cloud drive", Gone: true, Lasting: true}
	}
	return vendor.OfItem(err)
}
