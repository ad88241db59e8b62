package connector_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"agentsvc/schemas/source"
	"agentsvc/transport/connector"
	"agentsvc/transport/connector/connectortest"
	"agentsvc/transport/egress"
)

// FuzzAnswers: whatever a vendor answers, a walk and a fetch end, with a fault in our words or with items that have an
// identity, and nothing but the vendor is called.
func FuzzAnswers(f *testing.F) {
	var status, calls int
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.WriteHeader(status)
		w.Write(body) //nolint:errcheck // the client may have gone
	}))
	defer server.Close()
	var elsewhere []netip.AddrPort
	guard := egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Observe: func(to netip.AddrPort, _ error) error {
		if to.String() != server.Listener.Addr().String() {
			elsewhere = append(elsewhere, to)
			return errors.New("not the vendor")
		}
		return nil
	}})
	timing := quick
	timing.Backoff = 1
	all := connector.New(connector.Config{Guard: guard, OfficeDriveURL: server.URL + "/v1.0", CloudDriveURL: server.URL + "/drive/v3", Version: "test", Timing: timing})
	defer all.Close()
	id, word := map[string]string{"access_token": "token"}, map[string]string{"email": "a@example.com", "api_token": "token"}
	sources := []struct {
		kind        source.Kind
		config      source.Config
		credentials map[string]string
	}{
		{source.OfficeDrive, source.Config{DriveID: "drive-1"}, id}, {source.Wiki, source.Config{BaseURL: server.URL}, word}, {source.Wiki, source.Config{BaseURL: server.URL, SpaceKey: "KEY"}, word},
		{source.CloudDrive, source.Config{}, id}, {source.CloudDrive, source.Config{FolderID: "folder-1"}, id},
		{source.ObjectStore, source.Config{Endpoint: server.URL, Region: "eu-1", Bucket: "docs"}, map[string]string{"access_key_id": connectortest.KeyID, "secret_access_key": connectortest.Secret}},
	}
	statuses := []int{200, 301, 400, 401, 403, 404, 410, 429, 500}
	for kind, answers := range [][]string{
		{`{"value":[{"id":"a","name":"a.txt","size":3,"cTag":"1","file":{"mimeType":"text/plain","hashes":{"sha1Hash":"x"}},"webUrl":"u"},{"id":"b","deleted":{},"folder":{}},{"id":"c","file":{},"malware":{}}],"@odata.deltaLink":"/v1.0/d"}`,
			`{"value":[{"id":"a","file":{}}],"@odata.nextLink":"/v1.0/next"}`},
		{`{"results":[{"id":"1","key":"KEY","title":"t","status":"current","version":{"number":2,"createdAt":"x"},"body":{"storage":{"value":"<p>a</p>"}},"_links":{"webui":"/x"}},{"id":2}],"_links":{"next":"/wiki/api/v2/pages?cursor=a","base":"b"}}`},
		{`{"results":[{"id":"1","key":"key"}],"_links":{}}`},
		{`{"files":[{"id":"a","name":"n","mimeType":"application/vnd.google-apps.document","modifiedTime":"t"},{"id":"b","mimeType":"text/plain","size":"4","md5Checksum":"m","trashed":true}],"nextPageToken":"p","incompleteSearch":true}`,
			`{"error":{"errors":[{"reason":"userRateLimitExceeded"}]}}`},
		{`{"files":[{"id":"a","mimeType":"application/vnd.google-apps.folder"},{"id":"b","sha256Checksum":"s"}]}`},
		{`<ListBucketResult><Name>docs</Name><IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken><Contents><Key>a/b.txt</Key><LastModified>2026-01-02T03:04:05Z</LastModified><ETag>"e"</ETag><Size>3</Size></Contents></ListBucketResult>`,
			`<Error><Code>ExpiredToken</Code><Message>m</Message></Error>`},
	} {
		for _, answer := range answers {
			for at := range statuses {
				if (statuses[at] == 200) == !strings.Contains(strings.ToLower(answer), "error") {
					f.Add(uint8(kind), uint8(at), []byte(answer))
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, kind, at uint8, text []byte) {
		if len(text) > 16<<10 {
			return // it costs time and finds no more
		}
		is := sources[int(kind)%len(sources)]
		status, body, calls, elsewhere = statuses[int(at)%len(statuses)], text, 0, nil
		s, err := all.Open(is.kind, is.config, is.credentials)
		if err != nil {
			t.Fatal(err)
		}
		failed := func(err error) {
			t.Helper()
			fault := new(source.Fault)
			if !errors.As(err, &fault) {
				t.Fatalf("%v is no fault", err)
			}
			if r := fault.Reason; r == "" || len(r) > 300 || strings.ContainsFunc(r, func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Fatalf("the reason %q", r)
			}
		}
		var items []source.Item
		var resume string
		var last bool
		walk := func(from source.Position) error {
			last = false
			return s.Walk(context.Background(), from, func(_ context.Context, p source.Page) error {
				if last || p.Last && p.Resume != "" || p.Full && !p.Last {
					t.Fatalf("a page %+v, last: %t", p, last)
				}
				last = p.Last
				items = append(items, p.Items...)
				if p.Resume != "" {
					resume = p.Resume
				}
				return nil
			})
		}
		if err := walk(source.Position{}); err != nil {
			failed(err)
		} else if !last {
			t.Fatal("the walk ended before its last page")
		}
		if resume != "" {
			if err := walk(source.Position{Resume: resume}); err != nil {
				failed(err)
			}
		}
		for _, i := range items {
			if i.ID == "" || i.Fault != nil && i.Fault.Reason == "" {
				t.Fatalf("%+v", i)
			}
		}
		if len(items) > 0 && !items[0].Deleted {
			one := items[0]
			one.Link = "" // leads anywhere, by design
			content, err := s.Fetch(context.Background(), one)
			if err == nil {
				_, err = io.Copy(io.Discard, content.Body)
				content.Body.Close()
			}
			if err != nil {
				failed(err)
			}
		}
		if len(elsewhere) > 0 || calls > 20+3*len(text) {
			t.Fatalf("%d calls, and to %v", calls, elsewhere)
		}
	})
}
