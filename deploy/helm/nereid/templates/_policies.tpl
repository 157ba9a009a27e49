{{/* The pods of one component, as a peer. */}}
{{- define "nereid.peer" -}}
{podSelector: {matchLabels: {{ include "nereid.selectorLabels" . | fromYaml | toJson }}}}
{{- end -}}

{{- define "nereid.metricsIngress" -}}
- ports: [{port: 8002, protocol: TCP}]
{{- with .Values.networkPolicy.metrics }}
  from: {{ toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "nereid.commonEgress" -}}
# Names.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* root, component, name, ingress and egress in YAML; without egress nothing gets out. */}}
{{- define "nereid.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  labels: {{ include "nereid.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{ include "nereid.selectorLabels" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress: {{ .ingress | nindent 4 }}
{{- with .egress }}
  egress: {{ . | nindent 4 }}
{{- end }}
{{- end -}}
