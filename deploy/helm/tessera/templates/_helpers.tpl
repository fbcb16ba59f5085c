{{/* What the objects are called: the release, with the chart's name where it has it not. */}}
{{- define "tessera.name" -}}
{{- if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What selects the pods of a role: (dict "root" $ "component" "node"). */}}
{{- define "tessera.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels of an object of a role. */}}
{{- define "tessera.labels" -}}
{{ include "tessera.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "tessera.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tessera.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names of the Secrets: those of the user, or those that the chart makes. */}}
{{- define "tessera.controllerTls" -}}
{{ .Values.tls.controllerSecret | default (printf "%s-controller-tls" (include "tessera.name" .)) }}
{{- end }}
{{- define "tessera.gatewayTls" -}}
{{ .Values.tls.gatewaySecret | default (printf "%s-gateway-tls" (include "tessera.name" .)) }}
{{- end }}
{{- define "tessera.controllerTokens" -}}
{{- $made := printf "%s-controller-tokens" (include "tessera.name" .) }}
{{- .Values.access.controllerTokensSecret | default $made }}
{{- end }}
{{- define "tessera.gatewayTokens" -}}
{{- $made := printf "%s-gateway-tokens" (include "tessera.name" .) }}
{{- .Values.access.gatewayTokensSecret | default $made }}
{{- end }}
{{- define "tessera.joinBearer" -}}
{{ .Values.join.bearerSecret | default (printf "%s-join" (include "tessera.name" .)) }}
{{- end }}

{{/* What all pods of Tessera may do: nothing. */}}
{{- define "tessera.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}
{{- define "tessera.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "tessera.logArgs" -}}
- --log
- {{ .Values.log.level }}
{{- if .Values.log.json }}
- --log-json
{{- end }}
{{- end }}

{{/* Refuses values that contradict each other. */}}
{{- define "tessera.check" -}}
{{- if and (gt (int .Values.controller.replicas) 1) (not .Values.etcd.endpoints) }}
{{- fail "controller.replicas: more than one needs etcd.endpoints" }}
{{- end }}
{{- if and .Values.join.bearerSecret .Values.join.tokensSecret }}
{{- fail "join: expected bearerSecret or tokensSecret, not both" }}
{{- end }}
{{- $has := or .Values.join.bearerSecret .Values.join.tokensSecret }}
{{- if and .Values.access.controllerTokensSecret (not $has) }}
{{- fail "access.controllerTokensSecret: expected join.bearerSecret or join.tokensSecret, too" }}
{{- end }}
{{- if and .Values.join.bearerSecret (not .Values.access.controllerTokensSecret) }}
{{- fail "join.bearerSecret: expected access.controllerTokensSecret, which knows it" }}
{{- end }}
{{- end }}
