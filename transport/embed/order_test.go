package embed_test

import (
	"strings"
	"testing"

	"agentsvc/schemas/id"
)

// open-parts.md, Embed: checked in this order: IP bucket, key, origin, body, identity,
// key bucket. Each call is wrong in two ways.
func TestTheFirstFaultOfACallWithAKeyIsAnswered(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, `, "with_identity_secret": true`)
	strict := w.newKey(w.a, w.a.agent, `, "with_identity_secret": true, "identity_required": true`)
	bare := w.newKey(w.a, w.a.agent, "")
	off := w.newKey(w.a, w.a.agent, "")
	paused(w, off)
	narrow := w.newKey(w.a, w.a.agent, `, "with_identity_secret": true, "rate_limit_per_min": 1`)
	const evil, unknown, forged = "https://evil.example", `{"unknown": 1}`, `{"user": {"token": "a.b.c"}}`
	session := func(k key, body string, fields ...string) answer {
		t.Helper()
		return w.send("POST", "/v1/embed/session", body, of(k, fields...)...)
	}
	for _, path := range []string{"GET /v1/embed/config", "POST /v1/embed/session"} {
		method, path, _ := strings.Cut(path, " ")
		address := stranger()
		_, got := w.emptied(func() answer { return w.send(method, path, "", "X-Svc-Embed-Key", "wrong", "X-Forwarded-For", address) })
		w.refused("IP bucket, key: "+path, got, 429, "RATE_LIMITED")
		w.refused("key, origin: "+path, w.send(method, path, "", "X-Svc-Embed-Key", "wrong", "Origin", evil), 401, "EMBED_KEY_INVALID")
		w.refused("key, origin: paused: "+path, w.send(method, path, "", of(off, "Origin", evil)...), 401, "EMBED_KEY_DISABLED")
	}
	w.refused("origin, body", session(k, unknown, "Origin", evil), 403, "EMBED_ORIGIN_DENIED")
	w.refused("origin, a body that is none", session(k, "{", "Origin", evil), 403, "EMBED_ORIGIN_DENIED")
	w.refused("origin, media type", session(k, "x", "Origin", evil, "Content-Type", "text/plain"), 403, "EMBED_ORIGIN_DENIED")
	w.refused("origin, identity", session(strict, "", "Origin", evil), 403, "EMBED_ORIGIN_DENIED")
	w.refused("body, identity that is required", session(strict, unknown), 400, "VALIDATION")
	w.refused("body, identity that is invalid", session(k, `{"unknown": 1, "user": {"token": "a.b.c"}}`), 400, "VALIDATION")
	w.refused("body, identity that is not available", session(bare, `{"unknown": 1, "user": {"token": "a.b.c"}}`), 400, "VALIDATION")
	passed, _ := w.emptied(func() answer { return session(narrow, "") })
	if passed < 10 || passed > 12 {
		t.Errorf("a key with a rate of 1 minted %d sessions", passed)
	}
	w.refused("identity, key bucket", session(narrow, forged), 401, "EMBED_IDENTITY_INVALID")
	w.refused("the key's bucket is empty", session(narrow, ""), 429, "RATE_LIMITED")
	w.refused("body, key bucket", session(narrow, unknown), 400, "VALIDATION")
}

// With a token: token, origin, buckets, body, thread, full, in flight.
func TestTheFirstFaultOfACallWithATokenIsAnswered(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	other := w.visit(k, "")
	const evil = "https://evil.example"
	foreign := w.filled(other, 200)
	post := func(g *guest, body string, fields ...string) answer {
		t.Helper()
		return g.send("POST", "/v1/embed/messages", body, fields...)
	}
	nothing := said{Thread: id.NewAnywhere().String(), Run: id.NewAnywhere().String()}
	for _, r := range tokenRoutes {
		w.refused("token, origin: "+r.name, r.call(w, nothing, "wrong", "Origin", evil), 401, "EMBED_UNAUTHORIZED")
	}

	poster, reader := w.visit(k, ""), w.visit(k, "")
	_, got := w.emptied(func() answer { return post(poster, `{"unknown": 1}`) })
	w.refused("bucket, body", got, 429, "RATE_LIMITED")
	w.refused("bucket, a body that is none", post(poster, `{`), 429, "RATE_LIMITED")
	w.refused("origin, bucket", post(poster, message("hi", ""), "Origin", evil), 403, "EMBED_ORIGIN_MISMATCH")
	w.refused("token, bucket", w.send("POST", "/v1/embed/messages", message("hi", ""), "Authorization", "Bearer "+poster.Token+"A", "Origin", page), 401, "EMBED_UNAUTHORIZED")
	for _, path := range []string{"/v1/embed/threads/nonsense/messages", "/v1/embed/runs/nonsense/events", "/v1/embed/threads?limit=x"} {
		_, got := w.emptied(func() answer { return reader.send("GET", path, "") })
		w.refused("bucket, path: "+path, got, 429, "RATE_LIMITED")
		w.refused("origin, bucket: "+path, reader.send("GET", path, "", "Origin", evil), 403, "EMBED_ORIGIN_MISMATCH")
	}
	for _, r := range tokenRoutes[1:] {
		_, got := w.emptied(func() answer { return r.call(w, foreign, reader.Token) })
		w.refused("bucket, thread: "+r.name, got, 429, "RATE_LIMITED")
	}

	me := w.visit(k, "")
	w.refused("origin, body", post(me, `{"unknown": 1}`, "Origin", evil), 403, "EMBED_ORIGIN_MISMATCH")
	w.refused("origin, thread", post(me, message("hi", foreign.Thread), "Origin", evil), 403, "EMBED_ORIGIN_MISMATCH")
	w.refused("body, thread", post(me, message("", foreign.Thread)), 400, "VALIDATION")
	w.refused("thread, full", post(me, message("hi", foreign.Thread)), 404, "NOT_FOUND")
	w.refused("full", post(other, message("hi", foreign.Thread)), 409, "EMBED_THREAD_FULL")

	w.models.Hold()
	running := me.say("hello", "")
	w.refused("in flight", post(me, message("hi", running.Thread)), 409, "EMBED_RUN_IN_FLIGHT")
	w.refused("body, in flight", post(me, message("", running.Thread)), 400, "VALIDATION")
	w.refused("thread, in flight", post(other, message("hi", running.Thread)), 404, "NOT_FOUND")
	both := w.filled(me, 200)
	w.exec(`UPDATE runs SET status = 'running', finished_at = NULL WHERE id = $1`, both.Run)
	w.refused("full, in flight", post(me, message("hi", both.Thread)), 409, "EMBED_THREAD_FULL")

	// AGENT_NOT_PUBLISHED is about a thread that is found.
	dumb := w.newKey(w.a, w.newAgent(w.a, ""), "")
	mute, mute2 := w.visit(dumb, ""), w.visit(dumb, "")
	w.refused("not published", post(mute, message("hi", "")), 409, "AGENT_NOT_PUBLISHED")
	w.exec(`INSERT INTO agent_versions (tenant_id, agent_id, version, status, manifest) SELECT tenant_id, agent_id, 1, 'draft', '{}' FROM embed_keys WHERE id = $1`, dumb.ID)
	short, full := w.filled(mute, 2), w.filled(mute, 200)
	w.refused("thread, not published: another visitor's", post(mute2, message("hi", short.Thread)), 404, "NOT_FOUND")
	w.refused("thread, not published: one that never was", post(mute2, message("hi", nothing.Thread)), 404, "NOT_FOUND")
	w.refused("full, not published", post(mute, message("hi", full.Thread)), 409, "EMBED_THREAD_FULL")
	w.refused("not published, in a thread", post(mute, message("hi", short.Thread)), 409, "AGENT_NOT_PUBLISHED")
	w.exec(`UPDATE runs SET status = 'queued', finished_at = NULL WHERE id = $1`, short.Run)
	w.refused("in flight, not published", post(mute, message("hi", short.Thread)), 409, "EMBED_RUN_IN_FLIGHT")
	w.is("0", `SELECT count(*)::text FROM threads WHERE agent_id = $1 AND id NOT IN ($2, $3)`, agentOf(w, dumb), short.Thread, full.Thread)
}
