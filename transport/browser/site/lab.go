package site

import (
	"io"
	"net/http"
	"time"

	"agentsvc/schemas/pause"
)

// laboratory serves the hostile pages. `to` in the query is where they lead.
func (s *Site) laboratory(w http.ResponseWriter, r *http.Request) {
	page, to := r.PathValue("page"), r.FormValue("to")
	switch page {
	case "redirect":
		http.Redirect(w, r, to, http.StatusFound)
		return
	case "file":
		w.Header().Set("Content-Disposition", `attachment; filename="orders.csv"`)
		_, _ = io.WriteString(w, "id,total\n1001,49.90\n")
		return
	case "worker.js":
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = io.WriteString(w, "self.addEventListener('fetch', e => e.respondWith(new Response('from a worker')))")
		return
	case "slow":
		pause.For(r.Context(), 20*time.Second)
		return
	case "endless":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>Endless</title><h1>Endless</h1>")
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, "<p>and more</p>\n"); err != nil {
				return
			}
			_ = http.NewResponseController(w).Flush()
			pause.For(r.Context(), 20*time.Millisecond)
		}
		return
	}
	s.render(w, http.StatusOK, "lab", view{Title: "Laboratory: " + page, Lab: page, Values: map[string]string{"to": to, "ws": r.FormValue("ws")}})
}
