{{- define "countd.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end }}
{{- $name | trunc 45 | trimSuffix "-" }}
{{- end }}

{{- define "countd.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "countd.labels" -}}
{{ include "countd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The domain of the pods' names. */ -}}
{{- define "countd.nodes" -}}
{{ include "countd.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- /* All names of the client's service, separated by commas, and the short ones of the pod. */ -}}
{{- define "countd.hosts" -}}
{{- $hosts := list }}
{{- range $name := list (include "countd.name" .) (printf "$(POD_NAME).%s-nodes" (include "countd.name" .)) }}
{{- $hosts = concat $hosts (list $name (printf "%s.%s" $name $.Release.Namespace) (printf "%s.%s.svc" $name $.Release.Namespace) (printf "%s.%s.svc.%s" $name $.Release.Namespace $.Values.clusterDomain)) }}
{{- end }}
{{- concat $hosts .Values.allowedHosts | join "," }}
{{- end }}

{{- define "countd.scheme" -}}
{{ if .Values.tls.secret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{- /* The secrets that are mounted, as name: secret. */ -}}
{{- define "countd.secrets" -}}
{{- with .Values.tls.secret }}
tls: {{ . }}
{{- end }}
{{- with .Values.clusterTLS.secret }}
cluster-tls: {{ . }}
{{- end }}
{{- with .Values.gossip.secret }}
gossip: {{ . }}
{{- end }}
{{- with .Values.auth.rootTokenSecret }}
root-token: {{ . }}
{{- end }}
{{- with .Values.sources.secret }}
sources: {{ . }}
{{- end }}
{{- end }}
