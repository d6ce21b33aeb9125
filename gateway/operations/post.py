"""PostObject: the browser's form, which is a PutObject with an answer of the form's choice.

Whoever calls has read the form's fields, verified its policy and written it as the PutObject that it stands for
(`gateway/s3/post_object.py`); the body in the context is the form's file.
"""

from gateway.context import OperationContext, Operator, S3Response, empty_response, xml_response
from gateway.operations.arguments import resource_url
from gateway.s3 import documents_out
from gateway.s3.post_object import redirect_url, success_status
from gateway.s3.request import S3Request
from storage.origin.signing import uri_encode


def as_form(put: Operator) -> Operator:
    """Make PutObject answer as a form wants it: 204 by default, 200, 201 with a document, or 303 to a page."""

    async def answer(context: OperationContext, request: S3Request) -> S3Response:
        stored = await put(context, request)
        etag = dict(stored.headers)["etag"].strip('"')
        fields = request.headers.combined
        page = redirect_url(fields, bucket=request.bucket, key=request.key, etag=etag)
        if page:
            return empty_response(303, (*stored.headers, ("location", page)))
        location = _location(context, request)
        headers = (*stored.headers, ("location", location))
        status = success_status(fields)
        if status != 201:
            return empty_response(status, headers)
        document = documents_out.post_response(location, request.bucket, request.key, etag)
        return xml_response(document, headers, status=201)

    return answer


def _location(context: OperationContext, request: S3Request) -> str:
    """Write the URL of the object: below the one that the form was sent to."""
    return f"{resource_url(context, request).rstrip('/')}/{uri_encode(request.key, keep_slash=True)}"
