package blackbox

import (
	"mime"
	"strings"
	"testing"
	"time"
)

// A message's deliverable is there when its run has succeeded, and is downloaded by its tenant only.
func TestDeliverables(t *testing.T) {
	t.Parallel()
	ctx := within(t, 40*time.Second)
	n := sharedNode(t)
	c, stranger := n.tenant("deliverables"), n.tenant("stranger")
	thread := c.thread(t, ctx, c.publish(t, "Reports", simulatedModel))
	for kind, media := range map[string]string{
		"xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
		"pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
		"html": "text/html; charset=utf-8",
	} {
		var posted struct {
			RunID string `json:"run_id"`
		}
		c.ask(t, ctx, 202, "POST", "/v1/threads/"+thread+"/messages", object{"deliverable": kind,
			"content": "/say # Überblick; 2026\n/say \n/say | a | n |\n/say |---|---|\n/say | x | 1 |"}, &posted)
		r := c.poll(t, ctx, posted.RunID, "")
		if r.Run.Status != "succeeded" {
			t.Fatalf("%s: %+v", kind, r.Run)
		}
		var list struct {
			Items []struct {
				ID, Kind, Name string
				MediaType      string `json:"media_type"`
				Size           int
				CreatedAt      time.Time `json:"created_at"`
			}
			NextCursor *string `json:"next_cursor"`
		}
		path := "/v1/runs/" + posted.RunID + "/artifacts"
		c.ask(t, ctx, 200, "GET", path, nil, &list)
		if len(list.Items) != 1 {
			t.Fatalf("%s: %+v", kind, list)
		}
		a := list.Items[0]
		if a.Kind != kind || a.Name != "Überblick-2026."+kind || a.MediaType != media || a.CreatedAt.IsZero() {
			t.Errorf("%+v", a)
		}
		got := c.ask(t, ctx, 200, "GET", path+"/"+a.ID, nil, nil)
		disposition, params, err := mime.ParseMediaType(got.header.Get("Content-Disposition"))
		if len(got.body) != a.Size || got.header.Get("Content-Type") != media || disposition != "attachment" || params["filename"] != a.Name || err != nil ||
			got.header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(got.header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: %d bytes of %d, %v", kind, len(got.body), a.Size, got.header)
		}
		for _, who := range []*caller{c, stranger} {
			for _, at := range []string{path + "/" + randomID, "/v1/runs/" + randomID + "/artifacts", "/v1/runs/" + randomID + "/artifacts/" + a.ID} {
				if x := who.ask(t, ctx, 404, "GET", at, nil, nil); x.code() != "NOT_FOUND" {
					t.Errorf("%s: %s", at, x)
				}
			}
		}
		stranger.ask(t, ctx, 404, "GET", path, nil, nil)
		stranger.ask(t, ctx, 404, "GET", path+"/"+a.ID, nil, nil)
	}
	var none struct{ Items []any }
	if c.ask(t, ctx, 200, "GET", "/v1/runs/"+c.say(t, ctx, thread, "x")+"/artifacts", nil, &none); none.Items == nil || len(none.Items) != 0 {
		t.Errorf("a run without a deliverable has %v", none.Items)
	}
}
