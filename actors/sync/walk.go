package sync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/source"
)

// The points at which a crash test kills the process.
var (
	pointBeforeStep = failpoint.Declare("sync.before_step")
	pointAfterStep  = failpoint.Declare("sync.after_step")
	pointBeforeDrop = failpoint.Declare("sync.before_drop")
	pointBeforeEnd  = failpoint.Declare("sync.before_end")
)

const (
	stepItems    = 500 // items of a step
	stepContents = 16  // fetched contents of a step
	dropAtOnce   = 500 // documents that one transaction deletes

	// patience is the default of Config.Patience. A page of a listing has three tenths of it more, which is within the 140 s that a vendor may hang.
	patience = 100 * time.Second
	// leastFile is the time that a file gets at least; a walk with less ends.
	leastFile = 5 * time.Second
	// mostFaults is how many files, one after the other, may fail for the moment until a file that the
	// source gave before is asked for again: if the source gives it, only these files are bad.
	// mostFirst is how many may fail before the walk has met such a file.
	mostFaults, mostFirst = 10, 100

	maxItem    = 2048 // bytes of an identity
	maxName    = 500  // bytes
	maxURI     = 4096 // bytes
	maxKind    = 200  // bytes of a media type
	maxVersion = 256  // bytes; of a longer one its hash is kept
)

// statusUnavailable is the status of a server that is overloaded, or of a file that is.
const statusUnavailable = 503

// untold is the version of a content that was fetched without a listing of its file. The listing that
// names the file next tells another one.
const untold = "?"

// tooLarge is the reason of a document that is not fetched.
const tooLarge = "the file is larger than 50 MiB"

// progress is what the row keeps of a walk on its way.
type progress struct {
	At      string `json:"at,omitempty"`      // of the connector
	Partial bool   `json:"partial,omitempty"` // the walk does not show what is gone
	Anew    bool   `json:"anew,omitempty"`    // it began anew: the former delta is of no use
	Unread  int    `json:"unread,omitempty"`  // files that the next sync tries again
	Lost    int    `json:"lost,omitempty"`    // files that were gone when they were fetched
	Why     string `json:"why,omitempty"`     // of the last one
	Done    bool   `json:"done,omitempty"`    // the listing is complete
	Full    bool   `json:"full,omitempty"`    // and shows what is gone
	Delta   string `json:"delta,omitempty"`
}

// walker is a walk on its way.
type walker struct {
	*kind
	addr  cluster.Address
	place *place
	begun *store.BegunWalk
	src   source.Source
	p     progress
	next  store.WalkPage // the step that is being made
	files []id.FileID    // of its contents
	met   time.Time      // when a page or a file could last be read
	since time.Time      // when the place on the node was taken
	at    string         // the connector's position in the last step
	steps int            // that were committed and brought the walk on: with new contents, or a position behind others
	fails int            // files that failed for the moment since a file could be read
	good  *source.Item   // the last file that the source gave, in this walk or before; nil: none was met
}

// walk performs a sync, from its last step on. It also returns how many steps brought it on.
func (k *kind) walk(ctx context.Context, a durable.Activation, p *place) (any, int, error) {
	t := a.Address.Tenant
	b, err := k.cfg.Store.BeginWalk(ctx, t, id.SourceID{UUID: a.Address.ID}, a.Epoch)
	if err != nil {
		return nil, 0, err
	}
	w := &walker{kind: k, addr: a.Address, place: p, begun: b, met: time.Now(), since: time.Now()}
	if b.Resume != "" {
		if err := json.Unmarshal([]byte(b.Resume), &w.p); err != nil {
			return nil, 0, fmt.Errorf("read the position of a walk: %w", err)
		}
	}
	w.at = w.p.At
	defer w.abandon()
	out, err := w.whole(ctx)
	if asked(err) > 0 && len(w.next.Put) > 0 { // what was fetched is not fetched again after the pause; the position stays
		if lost := w.commit(ctx); lost != nil {
			err = lost
		}
	}
	return out, w.steps, err
}

// whole lists the source, from the position on, and ends the sync.
func (w *walker) whole(ctx context.Context) (_ any, err error) {
	b := w.begun
	if b.Kind == lifecycle.SourceUpload { // its documents come by themselves
		return w.end(ctx)
	}
	if w.src, err = w.cfg.Connect(b.Kind, b.Config, b.Credentials); err != nil {
		return nil, err
	}
	if !w.p.Done {
		if err := w.list(ctx); err != nil {
			return nil, err
		}
		if !w.p.Done {
			return nil, errors.New("a walk ended without its last page")
		}
	}
	if b.Delta != "" && !w.p.Anew {
		if err := w.again(ctx); err != nil {
			return nil, err
		}
	}
	return w.end(ctx)
}

// errHangs ends a listing that does not go on.
var errHangs = &source.Fault{Reason: "the source did not answer in time"}

// list lists the source. A listing that gives no page for too long is ended, however many requests it makes for it.
func (w *walker) list(ctx context.Context) error {
	ctx, limit := pause.NewLimit(ctx, w.listing(), errHangs)
	defer limit.End()
	err := w.src.Walk(ctx, source.Position{Resume: w.p.At, Delta: w.begun.Delta}, func(ctx context.Context, p source.Page) error {
		limit.Hold() // files have a time of their own
		defer func() { limit.Set(w.listing()) }()
		return w.page(ctx, p)
	})
	if err != nil && context.Cause(ctx) == errHangs {
		return errHangs
	}
	return err
}

// listing returns how long the listing may take to its next page: what a page takes at most is left to it also where files took the time
// before.
func (w *walker) listing() time.Duration {
	page := w.cfg.Patience * 3 / 10
	return max(page, w.cfg.Patience+page-time.Since(w.met))
}

// again tries files again that gave no right, or whose contents could not be indexed: a listing of changes does not name them. A
// complete listing names them anyway.
func (w *walker) again(ctx context.Context) error {
	list, err := w.cfg.Store.FailedBefore(ctx, &w.begun.Walk, stepItems)
	if err != nil {
		return err
	}
	w.met = time.Now()
	for i := range list {
		d := &list[i]
		item := source.Item{ID: d.Item, Name: d.Name, MediaType: d.MediaType, Version: untold, Size: -1}
		if d.URI != nil {
			item.URI = *d.URI
		}
		if err := w.item(ctx, item, &d.KnownDocument); err != nil {
			return err
		}
		if err := w.full(ctx); err != nil {
			return err
		}
	}
	return w.flush(ctx)
}

// page takes one page of the listing.
func (w *walker) page(ctx context.Context, p source.Page) error {
	w.met = time.Now()
	open := slices.ContainsFunc(p.Items, func(i source.Item) bool { return i.Content != nil })
	if !open { // the time of an open response would run out meanwhile; its step gives the place up
		if err := w.yield(ctx); err != nil {
			return err
		}
	}
	if p.Restart {
		if err := w.flush(ctx); err != nil {
			return err
		}
		w.p, w.next.Restart = progress{Anew: true}, true
	}
	items := usable(p.Items)
	for len(items) > 0 {
		n := min(len(items), stepItems)
		if err := w.items(ctx, items[:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	switch {
	case p.Last:
		w.p.Done, w.p.Full, w.p.At = true, p.Full && !w.p.Partial, ""
		if p.Delta != "" { // a listing of changes would not name them again
			w.p.Unread += w.p.Lost
		}
		if w.p.Unread == 0 {
			w.p.Delta = p.Delta
		} else if !w.p.Anew {
			w.p.Delta = w.begun.Delta // the same changes again
		}
	case p.Resume != "":
		w.p.At = p.Resume
	case len(w.next.Put) < stepContents && !w.next.Restart:
		return nil // more for this step
	}
	w.save()
	return w.flush(ctx)
}

// usable returns the items of a page that can be documents, each once: the last one counts.
func usable(items []source.Item) []source.Item {
	last := make(map[string]int, len(items))
	for i, item := range items {
		last[item.ID] = i
	}
	out := items[:0:0]
	for i, item := range items {
		ok := last[item.ID] == i && item.ID != "" && len(item.ID) <= maxItem && utf8.ValidString(item.ID) && !strings.ContainsRune(item.ID, 0)
		if ok {
			out = append(out, item)
		} else if item.Content != nil {
			item.Content.Body.Close()
		}
	}
	return out
}

// mediaFiles are endings of pictures, sound, films, fonts, archives and programs: they hold no text.
var mediaFiles = func() map[string]bool {
	m := map[string]bool{}
	for _, e := range strings.Fields(`png jpg jpeg gif webp svg ico bmp tif tiff heic avif psd mp3 m4a wav flac ogg oga opus aac mp4 m4v mov avi mkv webm wmv
		woff woff2 ttf otf eot zip gz tgz bz2 xz 7z rar tar exe dll so dylib dmg iso msi deb rpm apk jar class o a bin`) {
		m["."+e] = true
	}
	return m
}()

// isMedia reports whether an item is a file without text, by what the source says and by its name. Of what leads to
// others and cannot be read only the address is known.
func isMedia(i source.Item) bool {
	if i.Leads && i.Fault != nil {
		return false
	}
	kind, _, _ := strings.Cut(i.MediaType, "/")
	switch kind {
	case "image", "audio", "video", "font":
		return true
	}
	return mediaFiles[strings.ToLower(path.Ext(i.Name))]
}

// items takes some items of a page.
func (w *walker) items(ctx context.Context, items []source.Item) error {
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	known, err := w.cfg.Store.KnownDocuments(ctx, &w.begun.Walk, ids)
	if err != nil {
		return err
	}
	for _, item := range items {
		var doc *store.KnownDocument
		if d, ok := known[item.ID]; ok {
			doc = &d
		}
		if err := w.item(ctx, item, doc); err != nil {
			return err
		}
		if err := w.full(ctx); err != nil {
			return err
		}
	}
	return nil
}

// full commits a step that is full.
func (w *walker) full(ctx context.Context) error {
	if n := &w.next; len(n.Put) < stepContents && len(n.Met)+len(n.Failed)+len(n.Gone) < stepItems {
		return nil
	}
	w.save()
	return w.flush(ctx)
}

// item takes one item; doc is its document, nil if there is none.
func (w *walker) item(ctx context.Context, item source.Item, doc *store.KnownDocument) error {
	if item.Content != nil {
		defer item.Content.Body.Close()
	}
	if item.Deleted || isMedia(item) { // a listing of changes names a file once, and it may have been a text before
		if doc != nil {
			w.next.Gone = append(w.next.Gone, doc.ID)
			documents.WithLabelValues("deleted").Inc()
		}
		return nil
	}
	refused := item.Leads && item.Fault != nil && item.Fault.Lasting
	if refused && item.Linked && doc == nil { // one of the links that are not for us
		return nil
	}
	w.next.Listed++
	meet := store.MetDocument{Item: item.ID, Name: cleanName(item.Name, item.ID), URI: cleanURI(item.URI)}
	if item.Version != "" {
		version := cleanVersion(item.Version)
		meet.Version = &version
	}
	switch {
	case item.Fault != nil:
		w.p.Partial = w.p.Partial || !item.Fault.Lasting
		if refused && doc != nil {
			if wasGiven(doc) {
				w.unread(meet.Name, item.Fault)
				w.p.Partial = true
			}
			meet.Name, meet.URI = doc.Name, doc.URI // the item knows its address only
		}
		return w.fault(ctx, item, doc, meet, item.Fault)
	case item.Size > knowledge.MaxFileBytes:
		w.fail(meet, item, tooLarge)
		return nil
	case doc != nil && !doc.Again && meet.Version != nil && doc.Version != nil && *meet.Version == *doc.Version:
		documents.WithLabelValues("unchanged").Inc()
		if item.Content != nil { // a crawl has just read it
			w.fails = 0
		}
		w.given(item)
		w.meet(doc, meet)
		return nil
	}
	return w.fetch(ctx, item, doc, meet)
}

// fetch stores the content of an item that changed. A content that broke off is fetched once more.
func (w *walker) fetch(ctx context.Context, item source.Item, doc *store.KnownDocument, meet store.MetDocument) error {
	put, err := w.store(ctx, item, item.Content)
	f := new(source.Fault)
	if errors.As(err, &f) && f.Again && f.Item && f.RetryAfter == 0 {
		put, err = w.store(ctx, item, nil)
	}
	switch {
	case err == nil:
	case w.cfg.Files.TooLarge(err):
		w.fail(meet, item, tooLarge)
		return nil
	case errors.As(err, &f):
		return w.fault(ctx, item, doc, meet, f)
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return err
	}
	w.met, w.fails = time.Now(), 0
	w.given(item)
	if put.Name != "" && item.Name == "" {
		meet.Name = cleanName(put.Name, item.ID)
	}
	put.MetDocument = meet
	if doc != nil && !doc.Failed && string(doc.Sum) == string(put.Sum[:]) { // the version changed, and the content did not
		w.discard(context.WithoutCancel(ctx), put.File)
		documents.WithLabelValues("unchanged").Inc()
		w.meet(doc, meet)
		return nil
	}
	documents.WithLabelValues("fetched").Inc()
	w.next.Put, w.files = append(w.next.Put, *put), append(w.files, put.File)
	return nil
}

// store puts a content, which is fetched unless it came with the listing, into the store of files.
func (w *walker) store(ctx context.Context, item source.Item, content *source.Content) (*store.PutDocument, error) {
	ctx, cancel := context.WithTimeout(ctx, max(leastFile, w.cfg.Patience-time.Since(w.met)))
	defer cancel()
	if content == nil {
		fetched, err := w.src.Fetch(ctx, item)
		if err != nil {
			return nil, w.late(ctx, err)
		}
		defer fetched.Body.Close()
		content = &fetched
	}
	p := &store.PutDocument{File: id.FileID{UUID: id.NewAnywhere()}, MediaType: content.MediaType}
	p.Name = content.Name
	if p.MediaType = clean(p.MediaType); p.MediaType == "" || len(p.MediaType) > maxKind {
		p.MediaType = mediaType(item)
	}
	r := &reader{r: content.Body}
	var err error
	p.SizeBytes, p.Sum, err = w.cfg.Files.Put(ctx, w.addr.Tenant, p.File, r, knowledge.MaxFileBytes)
	switch {
	case err == nil:
		return p, nil
	case r.err != nil:
		return nil, w.late(ctx, r.err)
	case w.cfg.Files.TooLarge(err), ctx.Err() != nil:
		return nil, w.late(ctx, err)
	}
	return nil, &noFiles{err}
}

// late makes a fault of the end of a file's own time.
func (w *walker) late(ctx context.Context, err error) error {
	if f := new(source.Fault); errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.As(err, &f) {
		return &source.Fault{Reason: "the file did not come in time", Item: true}
	}
	return err
}

// reader keeps the error of the source, which the store of files may hide.
type reader struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// given notes an item that the source gave.
func (w *walker) given(item source.Item) {
	item.Content = nil // it is valid for this page only
	w.good = &item
}

// gives reports whether the source still gives the last file that it gave.
func (w *walker) gives(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, max(leastFile, w.cfg.Patience-time.Since(w.met)))
	defer cancel()
	content, err := w.src.Fetch(ctx, *w.good)
	if err == nil {
		content.Body.Close()
		w.met, w.fails = time.Now(), 0
		return true, nil
	}
	if f := new(source.Fault); errors.As(w.late(ctx, err), &f) {
		err = nil
	}
	return false, err
}

// fault handles an item that cannot be read.
func (w *walker) fault(ctx context.Context, item source.Item, doc *store.KnownDocument, meet store.MetDocument, f *source.Fault) error {
	switch {
	case f.Login || !f.Item && item.Fault == nil:
		return f
	case f.RetryAfter > 0 && f.Status != statusUnavailable: // it limits requests, not those of this file
		return f
	case f.Gone: // since it was listed; the next listing decides
		w.p.Lost++
		if w.p.Unread == 0 {
			w.p.Why = meet.Name + ": " + f.Reason
		}
	case f.Lasting:
		if !f.Content {
			meet.Version = nil // rights may be given without a change of the file
		}
		w.fail(meet, item, f.Reason)
		return nil
	default:
		w.fails++
		w.unread(meet.Name, f)
		documents.WithLabelValues("unread").Inc()
		ends := w.fails >= mostFirst || w.cfg.Patience-time.Since(w.met) < leastFile
		if w.good != nil && w.fails >= mostFaults && !ends {
			gives, err := w.gives(ctx)
			if err != nil {
				return err
			}
			ends = !gives
		}
		if ends {
			one := *f
			one.Item = false
			return &one
		}
	}
	if doc != nil { // it stays as it was
		w.next.Met = append(w.next.Met, *doc)
	}
	return nil
}

// unread notes a file that the next sync tries again.
func (w *walker) unread(name string, f *source.Fault) {
	w.p.Unread++
	w.p.Why = name + ": " + f.Reason
}

// wasGiven reports whether the source ever gave the content of a document.
func wasGiven(d *store.KnownDocument) bool { return !bytes.Equal(d.Sum, make([]byte, sha256.Size)) }

// meet notes a document whose content is as it was.
func (w *walker) meet(doc *store.KnownDocument, now store.MetDocument) {
	d := *doc
	d.Version, d.Name, d.URI = now.Version, now.Name, now.URI
	w.next.Met = append(w.next.Met, d)
}

// fail makes the document of an item a failed one.
func (w *walker) fail(meet store.MetDocument, item source.Item, why string) {
	documents.WithLabelValues("failed").Inc()
	w.next.Failed = append(w.next.Failed, store.FailedDocument{MetDocument: meet, MediaType: mediaType(item), Reason: why})
}

// save puts the position into the step.
func (w *walker) save() {
	b, err := json.Marshal(w.p)
	if err != nil {
		panic(err) // texts and numbers
	}
	at := string(b)
	w.next.Resume = &at
}

// flush commits the step, if there is one.
func (w *walker) flush(ctx context.Context) error {
	n := &w.next
	if len(n.Met)+len(n.Put)+len(n.Failed)+len(n.Gone) == 0 && n.Resume == nil && !n.Restart {
		return nil
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	return w.yield(ctx)
}

// commit commits the step.
func (w *walker) commit(ctx context.Context) error {
	n := &w.next
	failpoint.Hit(pointBeforeStep)
	wake, err := w.cfg.Store.WriteWalk(ctx, &w.begun.Walk, n)
	if err != nil {
		return err // abandon settles the files
	}
	failpoint.Hit(pointAfterStep)
	if len(n.Put) > 0 || w.p.At != w.at {
		w.steps++
	}
	w.at = w.p.At
	for _, f := range w.files {
		w.cfg.Files.Settle(w.addr.Tenant, f, true)
	}
	w.files, w.next = nil, store.WalkPage{}
	w.wake(wake)
	return nil
}

// abandon settles the contents of a step that was not committed, or may not have been.
func (w *walker) abandon() {
	for _, f := range w.files {
		w.cfg.Files.Settle(w.addr.Tenant, f, false) // a sweep checks whether a row names it
	}
	w.files = nil
}

// discard removes a content that is not needed.
func (w *walker) discard(ctx context.Context, f id.FileID) {
	err := w.cfg.Files.Delete(ctx, w.addr.Tenant, f)
	w.cfg.Files.Settle(w.addr.Tenant, f, err == nil)
}

// wake wakes the actors of documents. The sweep finds those that this misses.
func (w *walker) wake(list []id.DocumentID) {
	for _, d := range list {
		w.cfg.Tell.Tell(cluster.Address{Kind: msg.KindIngest, Tenant: w.addr.Tenant, ID: d.UUID}, durable.Wake{})
	}
}

// yield gives up the place on the node for a moment, if others have waited for it long enough.
func (w *walker) yield(ctx context.Context) error {
	if time.Since(w.since) < slice || !w.places.Wanted() {
		return nil
	}
	w.place.give()
	err := w.place.take(ctx)
	w.since, w.met = time.Now(), time.Now()
	return err
}

// end deletes what is gone, and says how the sync ended.
func (w *walker) end(ctx context.Context) (any, error) {
	for w.p.Full {
		failpoint.Hit(pointBeforeDrop)
		gone, err := w.cfg.Store.DropUnmet(ctx, &w.begun.Walk, dropAtOnce)
		if err != nil {
			return nil, err
		}
		documents.WithLabelValues("deleted").Add(float64(len(gone)))
		w.wake(gone)
		if len(gone) < dropAtOnce {
			break
		}
	}
	n, err := w.cfg.Store.CountDocuments(ctx, w.addr.Tenant, w.begun.Source)
	if err != nil {
		return nil, err
	}
	failpoint.Hit(pointBeforeEnd)
	out := Ended{OK: true, Documents: n, Delta: w.p.Delta}
	switch {
	case w.p.Unread == 1:
		out.Error = "1 file could not be read and is tried again by the next sync: " + w.p.Why
	case w.p.Unread > 1:
		out.Error = fmt.Sprintf("%d files could not be read and are tried again by the next sync, the last one: %s", w.p.Unread, w.p.Why)
	}
	return out, nil
}

// clean removes what a row cannot hold and what people cannot see.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s)
}

// cleanVersion returns a version as a row holds it.
func cleanVersion(version string) string {
	if len(version) > maxVersion {
		sum := sha256.Sum256([]byte(version))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return clean(version)
}

// cleanName returns a name of a document in one line.
func cleanName(name, item string) string {
	name = strings.TrimSpace(clean(strings.ToValidUTF8(name, "")))
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "")
	}
	if name == "" {
		name = clean(item)
	}
	if name == "" {
		return "untitled"
	}
	return name
}

// cleanURI returns an address that people can open, nil for any other. A vendor may supply
// scripts.
func cleanURI(s string) *string {
	u, err := url.Parse(s)
	if err != nil || len(s) > maxURI || u.Scheme != "https" && u.Scheme != "http" && u.Scheme != "s3" || clean(s) != s {
		return nil
	}
	return &s
}

// mediaType returns the media type that an item declares.
func mediaType(i source.Item) string {
	if kind := clean(i.MediaType); kind != "" && len(kind) <= maxKind {
		return kind
	}
	return "application/octet-stream"
}
