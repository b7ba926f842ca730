package auth

import (
	"strings"
	"testing"
)

func TestMaskTokens(t *testing.T) {
	secret := strings.Repeat("0a", 32)
	for text, want := range map[string]string{
		"":                                  "",
		"posts":                             "posts",
		"ctd_k3_" + secret:                  "ctd_k3_…",
		"ctd_k3_" + secret[:9]:              "ctd_k3_…",
		"/v1/users/ctd_k3_" + secret + "/x": "/v1/users/ctd_k3_…/x",
		`{"a":"ctd_k3_` + secret + `","b":"ctd_k12_` + secret + `"}`: `{"a":"ctd_k3_…","b":"ctd_k12_…"}`,
		"ctd_" + secret:  "ctd_" + secret, // not a token, because it has no id
		"ctd__" + secret: "ctd__…",
	} {
		if got := MaskTokens(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
