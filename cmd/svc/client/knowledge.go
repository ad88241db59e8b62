package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"agentsvc/cmd/svc/cli"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/pause"
)

var baseKind = kind{what: "knowledge base", path: "/v1/knowledge-bases"}

// in returns the kind of the documents or sources of one knowledge base.
func in(base, what, list string) kind { return kind{what: what, path: baseKind.at(base) + "/" + list} }

func documentsOf(base string) kind { return in(base, "document", "documents") }
func sourcesOf(base string) kind   { return in(base, "source", "connectors") }

// baseView is a knowledge base as the API shows it.
type baseView struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Embedding *struct {
		Provider string `json:"provider"`
		Model    string `json:"model"`
	} `json:"embedding"`
	UpdatedAt *time.Time `json:"updated_at"`
}

func (b *baseView) search() string {
	if b.Embedding == nil {
		return "lexical"
	}
	return "hybrid, " + cli.Visible(b.Embedding.Provider+"/"+b.Embedding.Model)
}

// documentView is a document as the API shows it.
type documentView struct {
	ID       string  `json:"id"`
	Name     string  `json:"name"`
	Size     int64   `json:"size"`
	Status   string  `json:"status"`
	Error    *string `json:"error"`
	Chunks   int     `json:"chunks"`
	SourceID *string `json:"source_id"`
}

func (d *documentView) ended() bool { return d.Status == "ready" || d.Status == "failed" }

// sourceView is a source as the API shows it.
type sourceView struct {
	ID           string     `json:"id"`
	Kind         string     `json:"kind"`
	Name         string     `json:"name"`
	Schedule     *string    `json:"schedule"`
	Enabled      bool       `json:"enabled"`
	Status       string     `json:"status"`
	LastSyncedAt *time.Time `json:"last_synced_at"`
	LastError    *string    `json:"last_error"`
	Listed       int        `json:"listed"`
}

func (s *sourceView) moves() bool { return s.Status == "queued" || s.Status == "syncing" }

func knowledgeCommand() *cobra.Command {
	cmd := cli.Group("kb", "knowledge bases, their documents and sources, and searches in them")
	cmd.Long = idHelp
	cmd.AddCommand(basesListCommand(), basesCreateCommand(), onOne(baseKind, "get", "one knowledge base", show), documentsListCommand(), uploadCommand(), searchCommand(),
		sourcesListCommand(), connectCommand(), syncCommand(), knowledgeRemoveCommand())
	return cmd
}

func basesListCommand() *cobra.Command {
	return listCommand(baseKind, "list knowledge bases, newest first", "knowledge bases", "BASE\tNAME\tSEARCH\tUPDATED", func(w io.Writer, b *baseView) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cli.ShortID(b.ID), cli.Shorten(cli.Visible(b.Name), 60), cli.Shorten(b.search(), 60), cli.Moment(b.UpdatedAt))
	})
}

func basesCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create NAME", Short: "make a knowledge base",
		Long: "Without --embedding its search is lexical: by words. With it, it is hybrid: by words and by meaning.", Args: cobra.ExactArgs(1)}
	description := cmd.Flags().String("description", "", "for people, and for models")
	maxTokens := cmd.Flags().Int("max-tokens", knowledge.DefaultMaxTokens, "tokens of a chunk at most")
	overlap := cmd.Flags().Int("overlap-tokens", knowledge.DefaultOverlapTokens, "tokens that a chunk repeats of the one before")
	embedding := cmd.Flags().String("embedding", "", "what makes vectors of texts: PROVIDER/MODEL")
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		body, chunking := map[string]any{"name": args[0]}, map[string]int{}
		if *description != "" {
			body["description"] = *description
		}
		for flag, set := range map[string]func(){"max-tokens": func() { chunking["max_tokens"] = *maxTokens }, "overlap-tokens": func() { chunking["overlap_tokens"] = *overlap }} {
			if cmd.Flags().Changed(flag) {
				set()
			}
		}
		if len(chunking) > 0 {
			body["chunking"] = chunking
		}
		if *embedding != "" {
			provider, model, ok := strings.Cut(*embedding, "/")
			if !ok || provider == "" || model == "" {
				return cli.WrongUse(errors.New("--embedding: give the provider's slug, a slash and the model"))
			}
			body["embedding"] = map[string]string{"provider": provider, "model": model}
		}
		c, err := newClient()
		if err != nil {
			return err
		}
		return callAndShow(cmd, c, http.MethodPost, baseKind.path, body, func(w io.Writer, b *baseView) error {
			_, err := fmt.Fprintf(w, "%s  %s  %s\n", cli.Visible(b.ID), cli.Visible(b.Name), b.search())
			return err
		})
	})
	return cmd
}

// onBase returns a command about one knowledge base, its first argument.
func onBase(cmd *cobra.Command, work func(cmd *cobra.Command, c *Client, base string, args []string) error) *cobra.Command {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = completes(baseKind, 1)
	}
	cmd.RunE = cli.Does(func(cmd *cobra.Command, args []string) error {
		c, err := newClient()
		if err != nil {
			return err
		}
		base, err := c.find(cmd.Context(), baseKind, args[0])
		if err != nil {
			return err
		}
		return work(cmd, c, base, args[1:])
	})
	return cmd
}

func documentsListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "docs BASE", Short: "list the documents of a knowledge base, newest first", Args: cobra.ExactArgs(1)}
	most := limitFlag(cmd, 100)
	status := filledFlag(cmd, "status", "", "only those that are queued, processing, ready or failed")
	source := filledFlag(cmd, "source", "", "only those of this source")
	return onBase(cmd, func(cmd *cobra.Command, c *Client, base string, _ []string) error {
		q := url.Values{}
		if *status != "" {
			q.Set("status", *status)
		}
		if *source != "" {
			found, err := c.find(cmd.Context(), sourcesOf(base), *source)
			if err != nil {
				return err
			}
			q.Set("source_id", found)
		}
		items, next, err := listed(cmd, documentsOf(base).path, q, *most)
		if err != nil {
			return err
		}
		return printDocuments(cmd, items, next, *most)
	})
}

func printDocuments(cmd *cobra.Command, items []json.RawMessage, next *string, most int) error {
	return cli.PrintList(cmd, items, next, most, "documents", "DOCUMENT\tNAME\tSIZE\tSTATUS\tCHUNKS\tSOURCE\tERROR", func(w io.Writer, d *documentView) {
		why := ""
		if d.Error != nil {
			why = *d.Error
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", cli.ShortID(d.ID), cli.Shorten(cli.Visible(d.Name), 60), bytesOf(d.Size), cli.Visible(d.Status), d.Chunks, cli.ShortOr(d.SourceID),
			cli.Dash(cli.Shorten(cli.Visible(why), 80)))
	})
}

// bytesOf returns a size for people.
func bytesOf(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

// progress shows how far something is: one line that changes at a terminal, else nothing.
type progress struct {
	w    *os.File // nil: nothing is shown
	last time.Time
	wide int // characters of the widest line so far
}

// progressPause is the least time between two changes of the line.
const progressPause = 100 * time.Millisecond

func newProgress(cmd *cobra.Command) *progress {
	p := &progress{}
	if f, ok := cmd.ErrOrStderr().(*os.File); ok && isTerminal(f) && !cli.WantsJSON(cmd) {
		p.w = f
	}
	return p
}

func (p *progress) show(format string, args ...any) {
	if p.w == nil || time.Since(p.last) < progressPause {
		return
	}
	p.last = time.Now()
	columns := 80
	if n, _, err := term.GetSize(int(p.w.Fd())); err == nil && n > 1 {
		columns = n
	}
	// A line that wraps could not be written over.
	line := []rune(cli.Visible(fmt.Sprintf(format, args...)))
	if len(line) >= columns {
		line = append(line[:columns-2], '…')
	}
	p.wide = min(max(p.wide, len(line)), columns-1)
	fmt.Fprintf(p.w, "\r%-*s", p.wide, string(line))
}

func (p *progress) clear() {
	if p.w != nil && p.wide > 0 {
		fmt.Fprintf(p.w, "\r%*s\r", p.wide, "")
	}
}

func uploadCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "upload BASE FILE...", Short: "put files into a knowledge base and wait until they are indexed",
		Long: "A file whose name the base has already replaces that document, which keeps its id and its ACL.\n" +
			"Kinds: txt, md, html, pdf, docx, pptx, xlsx, csv, json; up to 50 MiB each.\n" +
			"The exit code is 1 if a document failed.",
		Args: cobra.MinimumNArgs(2)}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault // files
		}
		return completes(baseKind, 1)(cmd, args, word)
	}
	noWait := cmd.Flags().Bool("no-wait", false, "do not wait until the documents are indexed")
	return onBase(cmd, func(cmd *cobra.Command, c *Client, base string, files []string) error {
		if err := checkFiles(files); err != nil {
			return cli.WrongUse(err)
		}
		bar := newProgress(cmd)
		defer bar.clear()
		var docs []json.RawMessage
		for at := 0; at < len(files); at += knowledge.MaxFiles {
			batch := files[at:min(at+knowledge.MaxFiles, len(files))]
			put, err := c.putFiles(cmd.Context(), documentsOf(base).path, onDisk(batch), func(name string, done, size int64) {
				bar.show("uploading %d of %d  %s  %s of %s", at+1, len(files), name, bytesOf(done), bytesOf(size))
			})
			if err != nil {
				if at > 0 {
					err = fmt.Errorf("after %d of %d files: %w", at, len(files), err)
				}
				return err
			}
			docs = append(docs, put...)
		}
		failed := 0
		if !*noWait {
			var err error
			if failed, err = c.indexed(cmd.Context(), base, docs, bar); err != nil {
				return err
			}
		}
		bar.clear()
		if err := printDocuments(cmd, docs, nil, len(docs)); err != nil {
			return err
		}
		if failed > 0 {
			return fmt.Errorf("%d of %s failed", failed, counted(len(docs), "document"))
		}
		return nil
	})
}

// checkFiles refuses what would fail after other files are sent, and files that would replace
// each other.
func checkFiles(files []string) error {
	names := map[string]string{}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return err
		}
		name := filepath.Base(f)
		switch other, twice := names[name]; {
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is not a file", cli.Visible(f))
		case info.Size() > knowledge.MaxFileBytes:
			return fmt.Errorf("%s has %s: the most is %s", cli.Visible(f), bytesOf(info.Size()), bytesOf(knowledge.MaxFileBytes))
		case twice:
			return fmt.Errorf("%s and %s have the same name: the second one would replace the first", cli.Visible(other), cli.Visible(f))
		}
		names[name] = f
	}
	return nil
}

// PutDocuments uploads files of dir into a knowledge base, in one request. A document of the same
// name is replaced.
func (c *Client) PutDocuments(ctx context.Context, base string, dir fs.FS, names []string) error {
	files := make([]file, len(names))
	for i, name := range names {
		files[i] = file{name, func() (fs.File, error) { return dir.Open(name) }}
	}
	_, err := c.putFiles(ctx, documentsOf(base).path, files, func(string, int64, int64) {})
	return err
}

// file is a file to upload.
type file struct {
	name string
	open func() (fs.File, error)
}

// onDisk are files by their paths.
func onDisk(paths []string) []file {
	files := make([]file, len(paths))
	for i, path := range paths {
		files[i] = file{filepath.Base(path), func() (fs.File, error) { return os.Open(path) }}
	}
	return files
}

// putFiles uploads files in one request, and returns the documents. report is called as they are
// sent.
func (c *Client) putFiles(ctx context.Context, path string, files []file, report func(name string, done, size int64)) (docs []json.RawMessage, err error) {
	r, w := io.Pipe()
	form := multipart.NewWriter(w)
	var unread error // why a file could not be read
	written := make(chan struct{})
	go func() {
		defer close(written)
		if unread = writeFiles(form, files, report); errors.Is(unread, io.ErrClosedPipe) {
			unread = nil
		}
		w.CloseWithError(unread)
	}()
	defer func() {
		r.Close() // ends the writer
		<-written
		if unread != nil {
			err = unread
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Base+path, r)
	if err != nil {
		return nil, err
	}
	c.authorize(req)
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s is not reachable: %w", c.Base, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return nil, c.problemOf(resp)
	}
	var got struct{ Items []json.RawMessage }
	err = json.NewDecoder(resp.Body).Decode(&got)
	return got.Items, err
}

func writeFiles(form *multipart.Writer, files []file, report func(name string, done, size int64)) error {
	for _, f := range files {
		if err := f.write(form, report); err != nil {
			return err
		}
	}
	return form.Close()
}

func (f *file) write(form *multipart.Writer, report func(name string, done, size int64)) error {
	content, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return err
	}
	part, err := form.CreateFormFile("file", f.name)
	if err != nil {
		return err
	}
	sent := int64(0)
	_, err = io.Copy(part, io.TeeReader(content, reports(func(n int) {
		sent += int64(n)
		report(f.name, sent, info.Size())
	})))
	return err
}

// reports calls itself with the size of each write.
type reports func(n int)

func (r reports) Write(b []byte) (int, error) { r(len(b)); return len(b), nil }

// pollPause is the first pause between two looks at what is going on; it grows to pollMost.
const (
	pollPause = 200 * time.Millisecond
	pollMost  = 2 * time.Second
)

// indexed waits until the documents are ready or failed, replaces them by what they are then, and
// returns how many failed. A document that was deleted in the meantime counts as it was.
func (c *Client) indexed(ctx context.Context, base string, docs []json.RawMessage, bar *progress) (failed int, err error) {
	ended, wait := 0, pollPause
	for i := range docs {
		for {
			var d documentView
			if err := json.Unmarshal(docs[i], &d); err != nil {
				return failed, err
			}
			if d.ended() {
				if d.Status == "failed" {
					failed++
				}
				break
			}
			bar.show("indexing %d of %d  %s  %s", ended+1, len(docs), d.Name, d.Status)
			if !pause.For(ctx, wait) {
				return failed, ctx.Err()
			}
			wait = min(wait*3/2, pollMost)
			err := c.fetch(ctx, documentsOf(base).at(d.ID), &docs[i])
			var p *APIError
			if errors.As(err, &p) && p.Status == http.StatusNotFound {
				break
			}
			if err != nil {
				return failed, err
			}
		}
		ended++
	}
	return failed, nil
}

// whyView says why a result was found.
type whyView struct {
	Words     *int    `json:"words_rank"`
	Vectors   *int    `json:"vectors_rank"`
	Principal *string `json:"principal"`
}

// String returns it for people.
func (y *whyView) String() string {
	var parts []string
	if y.Words != nil {
		parts = append(parts, fmt.Sprintf("place %d by words", *y.Words))
	}
	if y.Vectors != nil {
		parts = append(parts, fmt.Sprintf("place %d by vectors", *y.Vectors))
	}
	if y.Principal == nil {
		return strings.Join(append(parts, "the document has no ACL"), ", ")
	}
	return strings.Join(append(parts, "seen as "+*y.Principal), ", ")
}

// hitView is a search result as the API shows it.
type hitView struct {
	Why          *whyView `json:"why"`
	DocumentName string   `json:"document_name"`
	Text         string   `json:"text"`
	Score        float64  `json:"score"`
	Cite         string   `json:"cite"`
	URI          *string  `json:"uri"`
}

func searchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "search BASE QUERY...", Short: "search a knowledge base, as its agents do",
		Long: "Without --as it finds documents that are public or have no ACL; with it, also those that the ACL lets this end user see,\n" +
			"and each result says why it was found.\n" +
			"Each result has its score, which compares within one search only, and the mark by which answers cite it.",
		Args: cobra.MinimumNArgs(2)}
	top := cmd.Flags().Int("top", knowledge.DefaultTopK, "how many results at most")
	as := filledFlag(cmd, "as", "", "search as this end user, by external id or id")
	why := cmd.Flags().Bool("why", false, "say why each result was found; --as does too")
	if err := cmd.RegisterFlagCompletionFunc("as", completes(endUserKind, -1)); err != nil {
		panic(err) // the flag is defined a line above
	}
	return onBase(cmd, func(cmd *cobra.Command, c *Client, base string, words []string) error {
		body := map[string]any{"query": strings.Join(words, " "), "top_k": *top}
		if *why || *as != "" { // who asks what a person finds asks why
			body["explain"] = true
		}
		if *as != "" {
			person, err := c.findPerson(cmd.Context(), *as)
			if err != nil {
				return err
			}
			body["end_user_id"] = person
		}
		type hits struct{ Items []hitView }
		return callAndShow(cmd, c, http.MethodPost, baseKind.at(base)+"/search", body, func(w io.Writer, h *hits) error {
			if len(h.Items) == 0 {
				_, err := fmt.Fprintln(w, "nothing found")
				return err
			}
			for i, hit := range h.Items {
				if i > 0 {
					fmt.Fprintln(w)
				}
				fmt.Fprintf(w, "%d  %.3g  %s  [%s]\n", i+1, hit.Score, cli.Visible(hit.DocumentName), cli.Visible(hit.Cite))
				if hit.URI != nil {
					fmt.Fprintf(w, "   %s\n", cli.Visible(*hit.URI))
				}
				if _, err := fmt.Fprintf(w, "   %s\n", cli.Shorten(cli.Visible(strings.Join(strings.Fields(hit.Text), " ")), 400)); err != nil {
					return err
				}
				if hit.Why != nil {
					fmt.Fprintf(w, "   %s\n", cli.Visible(hit.Why.String()))
				}
			}
			return nil
		})
	})
}

// findPerson returns the id of an end user by its external id or id.
func (c *Client) findPerson(ctx context.Context, text string) (string, error) {
	if found, full := cli.FullID(text); full {
		return found, nil
	}
	items, _, err := c.Pages(ctx, endUserKind.path, url.Values{"external_id": {text}}, 1)
	if err != nil {
		return "", err
	}
	if len(items) == 1 {
		of, err := nameOf(items[0])
		return of.ID, err
	}
	if _, isHex := cli.DigitsOf(text); !isHex {
		return "", &cli.LookupError{Code: "NOT_FOUND", Text: fmt.Sprintf("there is no end user with the external id %q", cli.Visible(text))}
	}
	return c.find(ctx, endUserKind, text)
}

func sourcesListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "sources BASE", Short: "list the sources of a knowledge base, newest first", Args: cobra.ExactArgs(1)}
	most := limitFlag(cmd, 100)
	return onBase(cmd, func(cmd *cobra.Command, _ *Client, base string, _ []string) error {
		items, next, err := listed(cmd, sourcesOf(base).path, url.Values{}, *most)
		if err != nil {
			return err
		}
		return cli.PrintList(cmd, items, next, *most, "sources", "SOURCE\tNAME\tKIND\tENABLED\tSTATUS\tSYNCED\tSCHEDULE\tERROR", func(w io.Writer, s *sourceView) {
			schedule, why := "", ""
			if s.Schedule != nil {
				schedule = *s.Schedule
			}
			if s.LastError != nil {
				why = *s.LastError
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.ShortID(s.ID), cli.Shorten(cli.Visible(s.Name), 40), cli.Visible(s.Kind), yesNo(s.Enabled), cli.Visible(s.Status),
				cli.Moment(s.LastSyncedAt), cli.Dash(cli.Visible(schedule)), cli.Dash(cli.Shorten(cli.Visible(why), 80)))
		})
	})
}

func connectCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "connect BASE --kind KIND --name NAME [--config JSON|@FILE|-] [--credentials JSON|@FILE|-]",
		Short: "add a source to a knowledge base; it is read with svc kb sync, or by its schedule",
		Long: "Kinds and their configuration: web {url or urls, depth, max_pages}, wiki {base_url, space_key}, object_store {endpoint, region, bucket, prefix},\n" +
			"office_drive {drive_id}, cloud_drive {folder_id}, upload.\n" +
			"Credentials: wiki {email, api_token}, object_store {access_key_id, secret_access_key, session_token}, office_drive and cloud_drive {access_token}.\n" +
			"Other users of the machine can read a command line: give credentials as @FILE or -.",
		Args: cobra.ExactArgs(1)}
	kindOf := cmd.Flags().String("kind", "", "web, wiki, object_store, office_drive, cloud_drive or upload")
	name := cmd.Flags().String("name", "", "for people")
	config := cmd.Flags().String("config", "", "where it reads, a JSON object: itself, @ and a file, or - for the input")
	credentials := cmd.Flags().String("credentials", "", "a JSON object: itself, @ and a file, or - for the input")
	cron := cmd.Flags().String("cron", "", "when it syncs, a cron expression; by hand only without it")
	zone := cmd.Flags().String("timezone", "", "time zone of --cron, such as Europe/Berlin (default UTC)")
	cli.Required(cmd, "kind", "name")
	return onBase(cmd, func(cmd *cobra.Command, c *Client, base string, _ []string) error {
		body := map[string]any{"kind": *kindOf, "name": *name}
		if *config == "-" && *credentials == "-" {
			return cli.WrongUse(errors.New("--config and --credentials cannot both be the input"))
		}
		for field, text := range map[string]string{"config": *config, "credentials": *credentials} {
			if text == "" {
				continue
			}
			read, err := readArgs(cmd.Context(), cmd.InOrStdin(), text)
			if err != nil {
				return cli.WrongUse(fmt.Errorf("--%s: %w", field, err))
			}
			body[field] = read
		}
		if *cron != "" {
			body["schedule"] = *cron
		}
		if *zone != "" {
			if *cron == "" {
				return cli.WrongUse(errors.New("--timezone: belongs to --cron"))
			}
			body["timezone"] = *zone
		}
		return callAndShow(cmd, c, http.MethodPost, sourcesOf(base).path, body, func(w io.Writer, s *sourceView) error {
			_, err := fmt.Fprintf(w, "%s  %s  %s\n\nsvc kb sync %s %s\n", cli.Visible(s.ID), cli.Visible(s.Kind), cli.Visible(s.Name), cli.ShortID(base), cli.ShortID(s.ID))
			return err
		})
	})
}

func syncCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "sync BASE SOURCE", Short: "sync a source and wait until it has ended",
		Long: "The exit code is 1 if the sync failed. Indexing goes on behind it: see svc kb docs.", Args: cobra.ExactArgs(2)}
	noWait := cmd.Flags().Bool("no-wait", false, "do not wait until the sync has ended")
	return onBase(cmd, func(cmd *cobra.Command, c *Client, base string, args []string) error {
		found, err := c.find(cmd.Context(), sourcesOf(base), args[0])
		if err != nil {
			return err
		}
		path := sourcesOf(base).at(found)
		if err := c.Call(cmd.Context(), http.MethodPost, path+"/sync", nil, nil); err != nil {
			return err
		}
		bar := newProgress(cmd)
		defer bar.clear()
		var raw json.RawMessage
		var s sourceView
		for wait := pollPause; ; wait = min(wait*3/2, pollMost) {
			if err := c.fetch(cmd.Context(), path, &raw); err != nil {
				return err
			}
			if err := json.Unmarshal(raw, &s); err != nil {
				return err
			}
			if *noWait || !s.moves() {
				break
			}
			bar.show("%s  %s  %s", s.Status, counted(s.Listed, "document"), s.Name)
			if !pause.For(cmd.Context(), wait) {
				return cmd.Context().Err()
			}
		}
		bar.clear()
		if cli.WantsJSON(cmd) {
			if err := cli.PrintJSON(cmd.OutOrStdout(), raw); err != nil {
				return err
			}
		} else if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s  %s  %s\n", cli.Visible(s.ID), cli.Visible(s.Status), counted(s.Listed, "document")); err != nil {
			return err
		}
		if s.Status == "failed" {
			why := "the sync failed"
			if s.LastError != nil {
				why += ": " + cli.Visible(*s.LastError)
			}
			return errors.New(why)
		}
		return nil
	})
}

func knowledgeRemoveCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rm BASE", Short: "delete a knowledge base with all in it, or one document or source of it", Args: cobra.ExactArgs(1)}
	document := filledFlag(cmd, "document", "", "delete this document only")
	source := filledFlag(cmd, "source", "", "delete this source with its documents only")
	cmd.MarkFlagsMutuallyExclusive("document", "source")
	return onBase(asking(cmd), func(cmd *cobra.Command, c *Client, base string, _ []string) error {
		path, what := baseKind.at(base), "delete a knowledge base with all in it"
		for of, text := range map[kind]string{documentsOf(base): *document, sourcesOf(base): *source} {
			if text == "" {
				continue
			}
			found, err := c.find(cmd.Context(), of, text)
			if err != nil {
				return err
			}
			path, what = of.at(found), "delete a "+of.what
		}
		return removeThat(cmd, c, path, what)
	})
}
